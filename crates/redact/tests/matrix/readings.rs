//! Decodes an output like an attacker would: in the notation of its carrier, independent of the redactor's
//! code.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// The notation of a carrier.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    Plain,
    /// Backslash escapes, possibly nested.
    Escaped,
    Percent,
    Entities,
    QuotedPrintable,
    /// Base64 and hexadecimal, also wrapped or compressed with gzip.
    Encoded,
    Numbers,
    /// The parts of lines split by Docker or containerd.
    Docker,
    Containerd,
}

/// Returns the output and its decoded forms.
pub(crate) fn of(output: &[u8], reading: Reading) -> Vec<Vec<u8>> {
    let mut readings = vec![output.to_vec(), without(output, &[0]), without_escapes(output)];
    match reading {
        Reading::Plain => {}
        Reading::Docker => {
            readings.push(unescape(&joined(output, "{\"log\":\"", "\",\"stream")));
            readings.push(unescape(&joined(output, "{\"log\":\"", "\",\"stream\":\"stderr")));
        }
        Reading::Containerd => {
            readings.push(joined(output, " stdout P ", "\n"));
            readings.push(joined(output, " stdout F ", "\n"));
            let all = String::from_utf8_lossy(output).replace(" stdout F ", " stdout P ");
            readings.push(joined(all.as_bytes(), " stdout P ", "\n"));
        }
        Reading::Escaped => {
            let mut text = output.to_vec();
            for _ in 0..3 {
                text = unescape(&text);
                readings.push(text.clone());
            }
        }
        Reading::Percent => {
            let once = percent(output);
            readings.push(percent(&once));
            readings.push(once);
        }
        Reading::Entities => readings.push(entities(output)),
        Reading::QuotedPrintable => readings.push(quoted_printable(output)),
        Reading::Encoded => {
            let mut last = vec![output.to_vec(), unescape(output)];
            for _ in 0..3 {
                last = last.iter().flat_map(|text| decoded(text)).collect();
                readings.extend(last.iter().cloned());
                readings.extend(last.iter().map(|text| without(text, &[0])));
            }
        }
        Reading::Numbers => {
            let words = String::from_utf8_lossy(output);
            let numbers = words.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
            readings.push(numbers.collect());
        }
    }
    readings
}

/// Joins the text between these words in each line.
fn joined(text: &[u8], before: &str, after: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let parts = text.lines().filter(|line| after == "\n" || line.contains(after));
    let parts = parts.filter_map(|line| line.split_once(before));
    parts.flat_map(|(_, part)| part.split(after).next().unwrap_or_default().bytes()).collect()
}

fn without(text: &[u8], left_out: &[u8]) -> Vec<u8> {
    text.iter().copied().filter(|byte| !left_out.contains(byte)).collect()
}

/// Removes colors.
fn without_escapes(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((byte, more)) = rest.split_first() {
        rest = more;
        if *byte == 0x1b {
            let end = rest.iter().position(|byte| *byte == b'm').map_or(0, |end| end + 1);
            rest = &rest[end..];
        } else {
            out.push(*byte);
        }
    }
    out
}

fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return out,
            [b'\\', b'u', hex @ ..] if number(hex, 4).is_some() => {
                out.push(number(hex, 4).unwrap_or_default());
                &hex[4..]
            }
            [b'\\', b'x', hex @ ..] if number(hex, 2).is_some() => {
                out.push(number(hex, 2).unwrap_or_default());
                &hex[2..]
            }
            [b'\\', b'n', more @ ..] => {
                out.push(b'\n');
                more
            }
            [b'\\', byte, more @ ..] | [byte, more @ ..] => {
                out.push(*byte);
                more
            }
        };
    }
}

fn number(hex: &[u8], len: usize) -> Option<u8> {
    let digits = std::str::from_utf8(hex.get(..len)?).ok()?;
    u8::try_from(u32::from_str_radix(digits, 16).ok()?).ok()
}

fn percent(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((byte, more)) = rest.split_first() {
        rest = more;
        match (byte, number(more, 2)) {
            (b'%', Some(byte)) => {
                out.push(byte);
                rest = &more[2..];
            }
            (b'+', _) => out.push(b' '),
            _ => out.push(*byte),
        }
    }
    out
}

fn entities(text: &[u8]) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(text).into_owned();
    for byte in 0x21..0x7f_u8 {
        text = text.replace(&format!("&#{byte};"), &char::from(byte).to_string());
    }
    for (entity, plain) in [("&quot;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&#x27;", "'"), ("&amp;", "&")] {
        text = text.replace(entity, plain);
    }
    text.into_bytes()
}

fn quoted_printable(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text).replace("=\n", "");
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, more)) = rest.split_first() {
        rest = more;
        match (byte, number(more, 2)) {
            (b'=', Some(byte)) => {
                out.push(byte);
                rest = &more[2..];
            }
            _ => out.push(*byte),
        }
    }
    out
}

/// Decodes Base64 and hexadecimal runs, of single lines and of all lines joined.
fn decoded(text: &[u8]) -> Vec<Vec<u8>> {
    let is_encoded = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
    let mut out = Vec::new();
    let last_words: Vec<u8> = text
        .split(|byte| *byte == b'\n')
        .flat_map(|line| {
            let words = line.split(|byte| !is_encoded(byte));
            words.max_by_key(|word| word.len()).unwrap_or_default().to_vec()
        })
        .collect();
    let runs = text.split(|byte| !is_encoded(byte)).filter(|run| run.len() >= 12);
    let docker = without(&joined(text, "{\"log\":\"", "\\n\""), b"=");
    for run in runs.chain([&last_words[..], &docker[..]]) {
        for skip in 0..4.min(run.len()) {
            let run = &run[skip..];
            let run = &run[..run.len() - usize::from(run.len() % 4 == 1)];
            for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
                out.extend(engine.decode(run).ok());
            }
        }
        if run.iter().all(u8::is_ascii_hexdigit) {
            out.push(run.chunks_exact(2).filter_map(|pair| number(pair, 2)).collect());
        }
    }
    let unpacked: Vec<Vec<u8>> = out.iter().filter_map(|packed| unpack(packed)).collect();
    out.extend(unpacked);
    out
}

fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut text).ok()?;
    Some(unpack(&text).unwrap_or(text))
}
