//! Text after programs, loggers, log drivers and readers have processed it.

use std::fmt::Write as _;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use landfall_redact::{Entry, Format, Options, Redactor};

use crate::readings::Reading;

pub(crate) struct Carrier {
    pub(crate) name: &'static str,
    pub(crate) write: fn(&str) -> Vec<u8>,
    pub(crate) reading: Reading,
    pub(crate) input: Input,
    /// Whether the carrier is only for commands.
    pub(crate) of_commands: bool,
}

/// Delivery of the text to the redactor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Stream(Format),
    /// In parts of this many bytes.
    Pieces(usize),
    /// Each line as a separate entry.
    Entries,
    /// Split at the end of a block that is searched together.
    Late,
}

const fn carrier(name: &'static str, write: fn(&str) -> Vec<u8>) -> Carrier {
    Carrier { name, write, reading: Reading::Plain, input: Input::Stream(Format::Lines), of_commands: false }
}

const fn read(name: &'static str, reading: Reading, write: fn(&str) -> Vec<u8>) -> Carrier {
    Carrier { reading, ..carrier(name, write) }
}

const fn given(name: &'static str, input: Input, write: fn(&str) -> Vec<u8>) -> Carrier {
    Carrier { input, ..carrier(name, write) }
}

const fn command(name: &'static str, reading: Reading, write: fn(&str) -> Vec<u8>) -> Carrier {
    Carrier { reading, of_commands: true, ..carrier(name, write) }
}

use Reading::{Containerd, Docker, Encoded, Entities, Escaped, Numbers, Percent, QuotedPrintable};

pub(crate) const CARRIERS: &[Carrier] = &[
    // Lines, and how they arrive.
    carrier("lines", |text| text.into()),
    carrier("lines between others", |text| format!("start of unit\nok\n{text}\ndone in 3s\n").into()),
    carrier("carriage returns", |text| (text.replace('\n', "\r\n") + "\r\n").into()),
    carrier("byte order mark", |text| format!("\u{feff}{text}\n").into()),
    carrier("indent", |text| each(text, "    ", "").into()),
    carrier("tabs", |text| each(text, "\t", "").into()),
    carrier("colors", |text| each(text, "\x1b[31m", "\x1b[0m").into()),
    carrier("colors written by syslog", |text| each(text, "#033[31m", "#033[0m").into()),
    carrier("colors shown by cat", |text| each(text, "^[[31m", "^[[0m").into()),
    given("single bytes", Input::Pieces(1), |text| format!("{text}\n").into()),
    given("pieces of seven bytes", Input::Pieces(7), |text| format!("{text}\n").into()),
    given("end of a block", Input::Late, |text| format!("{text}\n").into()),
    given("end of a block behind a prefix", Input::Late, |text| {
        each(text, "Nov 19 05:38:09 node-1 sh[812]: ", "").into()
    }),
    // Loggers and readers that put something before each line.
    carrier("syslog", |text| each(text, "Nov 19 05:38:09 node-1 cloud-init[812]: ", "").into()),
    carrier("syslog without a number", |text| each(text, "Nov  9 05:38:09 node-1 kernel: ", "").into()),
    carrier("syslog with a priority", |text| each(text, "<30>Nov 19 05:38:09 node-1 sh[8]: ", "").into()),
    carrier("syslog of RFC 5424", |text| {
        each(text, "<30>1 2026-11-19T05:38:09.123Z node-1 app 812 - - ", "").into()
    }),
    carrier("journal short-iso", |text| each(text, "2026-11-19T05:38:09+0000 node-1 sh[812]: ", "").into()),
    carrier("journal short-iso-precise", |text| {
        each(text, "2026-11-19T05:38:09.123456+00:00 node-1 sh[812]: ", "").into()
    }),
    carrier("journal short-precise", |text| each(text, "Nov 19 05:38:09.123456 node-1 sh[812]: ", "").into()),
    carrier("journal short-full", |text| {
        each(text, "Thu 2026-11-19 05:38:09 UTC node-1 sh[812]: ", "").into()
    }),
    carrier("journal short-monotonic", |text| each(text, "[   12.345678] node-1 sh[812]: ", "").into()),
    carrier("numbered syslog", |text| {
        numbered(text, |n| format!("Nov 19 05:38:{:02} node-1 sh[{}]: ", n % 60, 812 + n)).into()
    }),
    carrier("klog", |text| numbered(text, |n| format!("I1119 05:38:09.{n:06}    1234 main.go:12] ")).into()),
    carrier("kernel", |text| numbered(text, |n| format!("[ {:4}.{n:06}] ", n / 2)).into()),
    carrier("kernel buffer", |text| {
        numbered(text, |n| format!("6,{},{},-;", 1000 + n, 12_345_678 + n)).into()
    }),
    carrier("kernel with a date", |text| each(text, "[Thu Nov 19 05:38:09 2026] ", "").into()),
    carrier("console of Ignition", |text| each(text, "[   12.345678] ignition[700]: ", "").into()),
    carrier("cloud-init", |text| each(text, "2026-11-19 05:38:09,123 - util.py[DEBUG]: ", "").into()),
    carrier("console of cloud-init", |text| each(text, "[   12.345678] cloud-init[812]: ", "").into()),
    carrier("time alone", |text| each(text, "2026-11-19T05:38:09Z ", "").into()),
    carrier("time in brackets", |text| each(text, "[2026-11-19T05:38:09Z] ", "").into()),
    carrier("date with slashes", |text| each(text, "2026/11/19 05:38:09 ", "").into()),
    carrier("date with slashes and a level", |text| {
        each(text, "2026/11/19 05:38:09.123456 INFO Daemon ", "").into()
    }),
    carrier("log4j", |text| each(text, "2026-11-19 05:38:09,123 INFO  [main] c.e.Boot - ", "").into()),
    carrier("kubectl prefix", |text| each(text, "[pod/coredns-x7k2p/coredns] ", "").into()),
    carrier("kubeadm phase", |text| each(text, "[upload-certs] ", "").into()),
    carrier("compose", |text| each(text, "web-1  | ", "").into()),
    carrier("stern", |text| each(text, "coredns-x7k2p coredns ", "").into()),
    carrier("level", |text| each(text, "INFO ", "").into()),
    carrier("program", |text| each(text, "installer[812]: ", "").into()),
    carrier("line numbers of cat", |text| numbered(text, |n| format!("{n:6}\t")).into()),
    carrier("line numbers of grep", |text| numbered(text, |n| format!("{n}:")).into()),
    carrier("file and line of grep", |text| numbered(text, |n| format!("/var/log/boot.log:{n}:")).into()),
    carrier("line numbers of less", |text| numbered(text, |n| format!("{n:7} ")).into()),
    carrier("quotation", |text| each(text, "> ", "").into()),
    carrier("quotation twice", |text| each(text, "> > ", "").into()),
    carrier("trace of a shell", |text| each(text, "+ ", "").into()),
    carrier("nested trace of a shell", |text| each(text, "+++ ", "").into()),
    carrier("comment", |text| each(text, "# ", "").into()),
    carrier("diff", |text| each(text, "+", "").into()),
    carrier("prefix inside a prefix", |text| {
        each(text, "Nov 19 05:38:09 node-1 kubelet[812]: I1119 05:38:09.123456     812 a.go:1] ", "").into()
    }),
    carrier("line numbers before syslog", |text| {
        numbered(text, |n| format!("{n:6}\tNov 19 05:38:09 node-1 sh[812]: ")).into()
    }),
    carrier("octal line ends of syslog", |text| {
        let text = text.replace('\n', "#012").replace('\t', "#011");
        format!("Nov 19 05:38:09 node-1 sh[812]: {text}\n").into()
    }),
    // Structured loggers and log drivers.
    read("logfmt", Escaped, |text| {
        framed(text, "time=\"2026-11-19T05:38:09Z\" level=info msg=", " id=7").into()
    }),
    read("logfmt behind syslog", Escaped, |text| {
        framed(
            text,
            "Nov 19 05:38:09 node-1 containerd[9]: time=\"2026-11-19T05:38:09Z\" level=info msg=",
            "",
        )
        .into()
    }),
    read("zap", Escaped, |text| {
        framed(text, "{\"level\":\"info\",\"ts\":1763530689.1,\"caller\":\"a/b.go:7\",\"msg\":", "}").into()
    }),
    read("slog", Escaped, |text| {
        framed(text, "{\"time\":\"2026-11-19T05:38:09Z\",\"level\":\"INFO\",\"msg\":", ",\"n\":1}").into()
    }),
    read("JSON with spaces", Escaped, |text| {
        framed(text, "{\"level\": \"info\", \"message\": ", ", \"n\": 1}").into()
    }),
    read("journal as JSON", Escaped, |text| {
        framed(text, "{\"_PID\":\"812\",\"MESSAGE\":", ",\"PRIORITY\":\"6\"}").into()
    }),
    read("Docker", Escaped, |text| docker(text).into()),
    read("Docker with klog inside", Escaped, |text| {
        docker(&numbered(text, |n| format!("I1119 05:38:09.{n:06}    1234 main.go:12] "))).into()
    }),
    read("Docker with syslog before", Escaped, |text| {
        each(docker(text).trim_end(), "Nov 19 05:38:09 node-1 fluent[8]: ", "").into()
    }),
    read("Docker with divided lines", Docker, |text| docker_divided(text, 24).into()),
    read("lines of Docker divided at 16 KiB", Docker, |text| {
        docker_divided(&format!("{}{text}", "a filler ".repeat(1814)), 16 << 10).into()
    }),
    read("Docker with two streams", Docker, |text| {
        let lines = docker_divided(text, 24);
        let other = docker_line("a line\n").replace("stderr", "stdout");
        lines.lines().flat_map(|line| [line, "\n", &other]).collect::<String>().into()
    }),
    read("Fluent Bit", Escaped, |text| {
        framed(text, "[1763530689.1, {\"log\": ", ", \"host\": \"node-1\"}]").into()
    }),
    read("Fluentd", Escaped, |text| {
        let lines = text.lines().map(|line| {
            format!("2026-11-19 05:38:09 +0000 kube: {{\"log\":{}}}\n", json(&format!("{line}\n")))
        });
        lines.collect::<String>().into()
    }),
    given("containerd", Input::Stream(Format::Cri), |text| {
        each(text, "2026-11-19T05:38:09.123456789Z stdout F ", "").into()
    }),
    Carrier {
        reading: Containerd,
        ..given("containerd with divided lines", Input::Stream(Format::Cri), |text| {
            cri_divided(text, 24).into()
        })
    },
    read("containerd with divided lines read as lines", Containerd, |text| cri_divided(text, 24).into()),
    Carrier {
        reading: Containerd,
        ..given("containerd with two streams", Input::Stream(Format::Cri), |text| {
            let lines = cri_divided(text, 24);
            let other = "2026-11-19T05:38:09.123456789Z stderr F a line\n";
            lines.lines().flat_map(|line| [line, "\n", other]).collect::<String>().into()
        })
    },
    carrier("containerd read as lines", |text| {
        each(text, "2026-11-19T05:38:09.123456789Z stdout F ", "").into()
    }),
    Carrier {
        input: Input::Stream(Format::Cri),
        ..read("containerd with Docker inside", Escaped, |text| {
            each(docker(text).trim_end(), "2026-11-19T05:38:09.123456789Z stderr F ", "").into()
        })
    },
    Carrier {
        input: Input::Stream(Format::Cri),
        ..read("containerd with logfmt inside", Escaped, |text| {
            each(
                framed(text, "level=info msg=", "").trim_end(),
                "2026-11-19T05:38:09.123456789Z stderr F ",
                "",
            )
            .into()
        })
    },
    given("containerd with klog inside", Input::Stream(Format::Cri), |text| {
        numbered(text, |n| {
            format!("2026-11-19T05:38:09.{n:09}Z stderr F I1119 05:38:09.{n:06}       1 a.go:1] ")
        })
        .into()
    }),
    given("journal export, an entry for each line", Input::Stream(Format::JournalExport), |text| {
        text.lines().flat_map(journal_entry).collect()
    }),
    given("journal export, one entry", Input::Stream(Format::JournalExport), journal_entry),
    given("journal export with klog inside", Input::Stream(Format::JournalExport), |text| {
        let text = numbered(text, |n| format!("I1119 05:38:09.{n:06}    1234 main.go:12] "));
        text.lines().flat_map(journal_entry).collect()
    }),
    given("entries", Input::Entries, |text| text.into()),
    given("entries with a prefix inside", Input::Entries, |text| {
        each(text, "[   12.345678] cloud-init[812]: ", "").into()
    }),
    read("journal as JSON, numbers", Numbers, |text| {
        let bytes: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
        format!("{{\"_PID\":\"812\",\"MESSAGE\":[{}]}}\n", bytes.join(",")).into()
    }),
    // Notations of a whole text.
    read("JSON string", Escaped, |text| format!("{{\"stdout\":{},\"rc\":0}}\n", json(text)).into()),
    read("JSON in JSON", Escaped, |text| {
        format!("{{\"body\":{}}}\n", json(&format!("{{\"stdout\":{}}}", json(text)))).into()
    }),
    read("JSON in JSON in JSON", Escaped, |text| {
        let inner = format!("{{\"body\":{}}}", json(&format!("{{\"stdout\":{}}}", json(text))));
        format!("{{\"record\":{}}}\n", json(&inner)).into()
    }),
    read("JSON with escaped slashes", Escaped, |text| {
        format!("{{\"out\":{}}}\n", json(text).replace('/', "\\/")).into()
    }),
    read("JSON with escaped quotes and signs", Escaped, |text| {
        let text = json(text).replace("\\\"", "\\u0022").replace('&', "\\u0026").replace('<', "\\u003c");
        format!("{{\"out\":{}}}\n", text.replace('=', "\\u003d")).into()
    }),
    read("quoted by Go in an error", Escaped, |text| {
        format!(
            "E1119 05:38:09.123456    1234 a.go:7] \"Failed\" err=\"exit status 1, output: {}\"\n",
            quoted(text)
        )
        .into()
    }),
    read("quoted by Python", Escaped, |text| {
        let text = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
        format!("2026-11-19 05:38:09,123 - subp.py[DEBUG]: stdout: '{text}'\n").into()
    }),
    read("bytes of Python", Escaped, |text| {
        let text = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
        format!("read b'{text}' from the device\n").into()
    }),
    read("JSON array of lines", Escaped, |text| {
        let lines: Vec<String> = text.lines().map(|line| format!("    {}", json(line))).collect();
        format!("{{\n  \"stdout_lines\": [\n{}\n  ]\n}}\n", lines.join(",\n")).into()
    }),
    read("JSON array of lines in one line", Escaped, |text| {
        let lines: Vec<String> = text.lines().map(json).collect();
        format!("ok: [node-1] => {{\"stdout_lines\": [{}]}}\n", lines.join(", ")).into()
    }),
    read("string of YAML", Escaped, |text| format!("out: '{}'\n", json(text).replace('\'', "''")).into()),
    read("list of YAML", Escaped, |text| {
        text.lines().map(|line| format!("  - {}\n", json(line))).collect::<String>().into()
    }),
    carrier("block of YAML", |text| format!("stdout: |\n{}rc: 0\n", each(text, "  ", "")).into()),
    read("HTML", Entities, |text| {
        let text =
            text.replace('&', "&amp;").replace('"', "&quot;").replace('\'', "&#39;").replace('<', "&lt;");
        format!("<pre>\n{}\n</pre>\n", text.replace('>', "&gt;")).into()
    }),
    read("XML with numbers", Entities, |text| {
        let mut out = String::from("<out>");
        for c in text.chars() {
            if "\"'<>&=:@/+".contains(c) {
                let _ = write!(out, "&#{};", u32::from(c));
            } else {
                out.push(c);
            }
        }
        (out + "</out>\n").into()
    }),
    carrier("CDATA", |text| format!("<out><![CDATA[{text}]]></out>\n").into()),
    read("CSV", Escaped, |text| format!("1,\"{}\",ok\n", text.replace('"', "\"\"")).into()),
    read("percent-encoded", Percent, |text| format!("GET /log?text={} HTTP/1.1\n", percent(text)).into()),
    read("percent-encoded twice", Percent, |text| {
        format!("GET /log?text={} HTTP/1.1\n", percent(&percent(text))).into()
    }),
    read("form", Percent, |text| {
        format!("text={}%0A&level=info\n", percent(text).replace("%20", "+")).into()
    }),
    read("quoted-printable", QuotedPrintable, |text| quoted_printable(text, usize::MAX).into()),
    read("quoted-printable in lines", QuotedPrintable, |text| quoted_printable(text, 75).into()),
    // Encodings.
    read("Base64", Encoded, |text| format!("content: {}\n", STANDARD.encode(text)).into()),
    read("Base64 of URLs", Encoded, |text| format!("content: {}\n", URL_SAFE_NO_PAD.encode(text)).into()),
    read("data URL", Encoded, |text| format!("source: data:;base64,{}\n", STANDARD.encode(text)).into()),
    read("Base64 in lines", Encoded, |text| wrapped(&STANDARD.encode(text), 76, "").into()),
    read("Base64 in lines, indented", Encoded, |text| wrapped(&STANDARD.encode(text), 64, "      ").into()),
    read("Base64 in lines behind syslog", Encoded, |text| {
        wrapped(&STANDARD.encode(text), 76, "Nov 19 05:38:09 node-1 sh[812]: ").into()
    }),
    read("Base64 in lines in a JSON string", Encoded, |text| {
        format!("{{\"data\":{}}}\n", json(&wrapped(&STANDARD.encode(text), 76, ""))).into()
    }),
    read("Base64 in lines in Docker", Encoded, |text| {
        docker(&wrapped(&STANDARD.encode(text), 76, "")).into()
    }),
    read("Base64 of Base64", Encoded, |text| {
        format!("content: {}\n", STANDARD.encode(STANDARD.encode(text))).into()
    }),
    read("hexadecimal", Encoded, |text| format!("data={}\n", hexadecimal(text.as_bytes())).into()),
    read("capital hexadecimal", Encoded, |text| {
        format!("data={}\n", hexadecimal(text.as_bytes()).to_uppercase()).into()
    }),
    read("gzip", Encoded, |text| format!("content: {}\n", STANDARD.encode(gzip(text.as_bytes()))).into()),
    read("gzip of gzip", Encoded, |text| {
        format!("content: {}\n", STANDARD.encode(gzip(&gzip(text.as_bytes())))).into()
    }),
    read("gzip in lines", Encoded, |text| wrapped(&STANDARD.encode(gzip(text.as_bytes())), 76, "").into()),
    read("gzip in hexadecimal", Encoded, |text| {
        format!("data={}\n", hexadecimal(&gzip(text.as_bytes()))).into()
    }),
    carrier("UTF-16", |text| wide(text, u16::to_le_bytes)),
    carrier("UTF-16, most significant byte first", |text| wide(text, u16::to_be_bytes)),
    carrier("UTF-16 with a byte order mark", |text| wide(&format!("\u{feff}{text}"), u16::to_le_bytes)),
    carrier("UTF-16 behind ASCII", |text| {
        [b"output of the tool:\n".to_vec(), wide(&format!("{text}\n"), u16::to_le_bytes)].concat()
    }),
    read("UTF-16 in Base64", Encoded, |text| {
        format!("-EncodedCommand {}\n", STANDARD.encode(wide(text, u16::to_le_bytes))).into()
    }),
    read("UTF-16 in gzip", Encoded, |text| {
        format!("content: {}\n", STANDARD.encode(gzip(&wide(text, u16::to_le_bytes)))).into()
    }),
    // Commands.
    command("arguments of Python", Escaped, |text| {
        let words: Vec<String> = text.split_whitespace().map(|word| format!("'{word}'")).collect();
        format!(
            "2026-11-19 05:38:09,123 - subp.py[DEBUG]: Running command [{}] with allowed return codes [0]\n",
            words.join(", ")
        )
        .into()
    }),
    command("arguments of JSON", Escaped, |text| {
        let words: Vec<String> = text.split_whitespace().map(json).collect();
        format!("{{\"args\":[{}]}}\n", words.join(",")).into()
    }),
    command("arguments of Go", Escaped, |text| {
        let words: Vec<&str> = text.split_whitespace().collect();
        format!("I1119 05:38:09.123456    1234 exec.go:7] running [{}]\n", words.join(" ")).into()
    }),
    command("quoted arguments of Go", Escaped, |text| {
        let words: Vec<String> = text.split_whitespace().map(json).collect();
        framed(&format!("running [{}]", words.join(" ")), "level=info msg=", "").into()
    }),
    command("arguments of Go as a list", Escaped, |text| {
        let words: Vec<String> = text.split_whitespace().map(json).collect();
        format!("exec.Cmd{{Path:\"/bin/x\", Args:[]string{{{}}}}}\n", words.join(", ")).into()
    }),
    command("words of YAML in one line", Escaped, |text| {
        let words: Vec<&str> = text.split_whitespace().collect();
        format!("runcmd:\n - [ {} ]\n", words.join(", ")).into()
    }),
    command("audit record in hexadecimal", Encoded, |text| {
        let words = text.split_whitespace().enumerate();
        let words: String =
            words.map(|(n, word)| format!(" a{n}={}", hexadecimal(word.as_bytes()).to_uppercase())).collect();
        format!("type=EXECVE msg=audit(1763530689.123:7): argc=9{words}\n").into()
    }),
    command("arguments in /proc", Reading::Plain, |text| {
        (text.split_whitespace().collect::<Vec<_>>().join("\0") + "\0\n").into()
    }),
    command("audit record", Escaped, |text| {
        let words = text.split_whitespace().enumerate();
        let words: String = words.map(|(n, word)| format!(" a{n}=\"{word}\"")).collect();
        format!("type=EXECVE msg=audit(1763530689.123:7): argc=9{words}\n").into()
    }),
    command("process title", Encoded, |text| {
        let words = text.split_whitespace().collect::<Vec<_>>().join("\0");
        format!(
            "type=PROCTITLE msg=audit(1763530689.123:7): proctitle={}\n",
            hexadecimal(words.as_bytes()).to_uppercase()
        )
        .into()
    }),
    command("list of YAML, a word each", Escaped, |text| {
        text.split_whitespace().map(|word| format!("    - {word}\n")).collect::<String>().into()
    }),
    command("array of JSON, a word each", Escaped, |text| {
        let words: Vec<String> = text.split_whitespace().map(|word| format!("    {}", json(word))).collect();
        format!("  \"command\": [\n{}\n  ]\n", words.join(",\n")).into()
    }),
    command("list of YAML behind syslog, a word each", Escaped, |text| {
        let list: String = text.split_whitespace().map(|word| format!("- {word}\n")).collect();
        each(list.trim_end(), "Nov 19 05:38:09 node-1 sh[812]: ", "").into()
    }),
    command("array of JSON behind syslog, a word each", Escaped, |text| {
        let words: Vec<String> = text.split_whitespace().map(|word| format!("    {}", json(word))).collect();
        let array = format!("  \"command\": [\n{}\n  ]", words.join(",\n"));
        each(&array, "Nov 19 05:38:09 node-1 sh[812]: ", "").into()
    }),
    command("continued lines in Docker", Escaped, |text| {
        docker(&text.split_whitespace().collect::<Vec<_>>().join(" \\\n    ")).into()
    }),
    command("continued lines in logfmt", Escaped, |text| {
        framed(&text.split_whitespace().collect::<Vec<_>>().join(" \\\n    "), "level=info msg=", "").into()
    }),
    command("continued lines", Reading::Plain, |text| {
        (text.split_whitespace().collect::<Vec<_>>().join(" \\\n    ") + "\n").into()
    }),
    command("continued lines behind syslog", Reading::Plain, |text| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" \\\n    ");
        each(&text, "Nov 19 05:38:09 node-1 sh[812]: + ", "").into()
    }),
    command("array of JSON in a JSON string", Escaped, |text| {
        format!("{{\"msg\":{}}}\n", json(&format!("running {}", array(text)))).into()
    }),
    command("array of JSON in JSON in JSON", Escaped, |text| {
        let inner = format!("{{\"stdout\":{}}}", json(&array(text)));
        format!("{{\"body\":{}}}\n", json(&inner)).into()
    }),
    command("array of JSON, a word each, in a JSON string", Escaped, |text| {
        format!("{{\"stdout\":{},\"rc\":0}}\n", json(&array_in_lines(text))).into()
    }),
    command("array of JSON, a word each, in JSON in JSON", Escaped, |text| {
        let inner = format!("{{\"stdout\":{}}}", json(&array_in_lines(text)));
        format!("{{\"body\":{}}}\n", json(&inner)).into()
    }),
    command("array of JSON, a word each, as strings in one line", Escaped, |text| {
        let lines: Vec<String> = array_in_lines(text).lines().map(json).collect();
        format!("ok: [node-1] => {{\"stdout_lines\": [{}]}}\n", lines.join(", ")).into()
    }),
    command("array of JSON, a word each, as strings", Escaped, |text| {
        let lines: Vec<String> =
            array_in_lines(text).lines().map(|line| format!("    {}", json(line))).collect();
        format!("{{\n  \"stdout_lines\": [\n{}\n  ]\n}}\n", lines.join(",\n")).into()
    }),
    command("array of JSON in Docker", Escaped, |text| docker(&array(text)).into()),
    command("array of JSON in CSV", Escaped, |text| {
        format!("1,\"{}\",ok\n", array(text).replace('"', "\"\"")).into()
    }),
    command("array of JSON in HTML", Entities, |text| {
        format!("<pre>{}</pre>\n", array(text).replace('"', "&quot;")).into()
    }),
    command("array of JSON, percent-encoded", Percent, |text| {
        format!("GET /log?text={} HTTP/1.1\n", percent(&array(text))).into()
    }),
    command("list of YAML in a JSON string", Escaped, |text| {
        format!("{{\"manifest\":{}}}\n", json(&format!("command:\n{}", list(text)))).into()
    }),
    command("quoted list of YAML in a JSON string", Escaped, |text| {
        let list: String = text.split_whitespace().map(|word| format!("- {}\n", json(word))).collect();
        format!("{{\"manifest\":{}}}\n", json(&format!("command:\n{list}"))).into()
    }),
    command("list of YAML as strings in one line", Escaped, |text| {
        let lines: Vec<String> = list(text).lines().map(json).collect();
        format!("ok: [node-1] => {{\"stdout_lines\": [{}]}}\n", lines.join(", ")).into()
    }),
    command("words of YAML in one line in a JSON string", Escaped, |text| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = format!("runcmd:\n - [ {} ]\n", words.join(", "));
        format!("{{\"userdata\":{}}}\n", json(&text)).into()
    }),
    command("arguments of Python in a JSON string", Escaped, |text| {
        let text = format!("Running command {} with allowed return codes [0]", python(text));
        format!("{{\"level\":\"debug\",\"msg\":{}}}\n", json(&text)).into()
    }),
    command("arguments of Python in JSON in JSON", Escaped, |text| {
        let inner = format!("{{\"msg\":{}}}", json(&format!("Running command {}", python(text))));
        format!("{{\"log\":{}}}\n", json(&format!("{inner}\n"))).into()
    }),
    command("arguments of Python as strings in one line", Escaped, |text| {
        let lines = ["Running command", &python(text), "done"].map(json);
        format!("{{\"stdout_lines\": [{}]}}\n", lines.join(", ")).into()
    }),
    command("list of processes", Reading::Plain, |text| {
        format!("root       812  0.0  0.1  12345  6789 ?        Ss   05:38   0:00 {text}\n").into()
    }),
];

// === impl Carrier ===

impl Carrier {
    /// Returns whether the text is placed at the end of a block, once for each of its lines.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self.input, Input::Late)
    }

    pub(crate) fn redact(&self, redactor: &Redactor, input: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match self.input {
            Input::Stream(format) => {
                let mut stream = redactor.stream(Options { format, ..Options::default() });
                stream.push(input, &mut out);
                stream.finish(&mut out);
            }
            Input::Pieces(len) => {
                let mut stream = redactor.stream(Options::default());
                input.chunks(len).for_each(|piece| stream.push(piece, &mut out));
                stream.finish(&mut out);
            }
            Input::Entries => {
                let mut stream = redactor.entries(Options::default());
                for line in input.split(|byte| *byte == b'\n') {
                    let entry = Entry { unit: b"a", before: b"10:00 ", text: line, after: b"\n" };
                    stream.push(&entry, &mut out);
                }
                stream.finish(&mut out);
            }
            Input::Late => {
                // The block ends once on each line of the text.
                let starts = (0..input.len()).filter(|at| *at == 0 || input[at - 1] == b'\n');
                for start in starts {
                    let mut stream = redactor.stream(Options::default());
                    let filler = landfall_redact::HOLD_MAX - start - 3;
                    let line = b"a line like any other, one of very many of them\n";
                    let filler: Vec<u8> =
                        line.iter().cycle().copied().take(filler - 1).chain(*b"\n").collect();
                    stream.push(&filler, &mut out);
                    stream.push(input, &mut out);
                    stream.finish(&mut out);
                }
            }
        }
        out
    }
}

/// Returns whether a text is a command that can be split into arguments.
pub(crate) fn is_command(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    let is_program = first
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"/._-".contains(&byte));
    is_program && text.contains(" -") && !text.contains(['\n', '"', '\'', '|', '<', '>', '\\', '$'])
}

fn each(text: &str, before: &str, after: &str) -> String {
    text.lines().map(|line| format!("{before}{line}{after}\n")).collect()
}

fn numbered(text: &str, before: impl Fn(usize) -> String) -> String {
    text.lines().enumerate().map(|(n, line)| format!("{}{line}\n", before(n + 8))).collect()
}

/// Writes the words of a command as an array of JSON.
fn array(text: &str) -> String {
    format!("[{}]", text.split_whitespace().map(json).collect::<Vec<_>>().join(","))
}

/// Like [`array`], with a line for each word.
fn array_in_lines(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(|word| format!("  {}", json(word))).collect();
    format!("[\n{}\n]", words.join(",\n"))
}

/// Writes the words of a command as a list of YAML.
fn list(text: &str) -> String {
    text.split_whitespace().map(|word| format!("  - {word}\n")).collect()
}

/// Writes the words of a command as a list of Python.
fn python(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(|word| format!("'{word}'")).collect();
    format!("[{}]", words.join(", "))
}

/// Encodes a text as a JSON string.
fn json(text: &str) -> String {
    format!("\"{}\"", quoted(text))
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\t', "\\t")
}

fn framed(text: &str, before: &str, after: &str) -> String {
    text.lines().map(|line| format!("{before}{}{after}\n", json(line))).collect()
}

fn docker_line(text: &str) -> String {
    format!("{{\"log\":{},\"stream\":\"stderr\",\"time\":\"2026-11-19T05:38:09.123456789Z\"}}\n", json(text))
}

fn docker(text: &str) -> String {
    text.lines().map(|line| docker_line(&format!("{line}\n"))).collect()
}

fn docker_divided(text: &str, len: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line = format!("{line}\n");
        let bytes: Vec<char> = line.chars().collect();
        for piece in bytes.chunks(len) {
            out += &docker_line(&piece.iter().collect::<String>());
        }
    }
    out
}

fn cri_divided(text: &str, len: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let chars: Vec<char> = line.chars().collect();
        let mut pieces = chars.chunks(len).peekable();
        if chars.is_empty() {
            out += "2026-11-19T05:38:09.123456789Z stdout F \n";
        }
        while let Some(piece) = pieces.next() {
            let tag = if pieces.peek().is_some() { 'P' } else { 'F' };
            let piece: String = piece.iter().collect();
            let _ = writeln!(out, "2026-11-19T05:38:09.123456789Z stdout {tag} {piece}");
        }
    }
    out
}

fn journal_entry(text: &str) -> Vec<u8> {
    let mut entry = b"__REALTIME_TIMESTAMP=1763530689123456\n_SYSTEMD_UNIT=boot.service\n_PID=812\n".to_vec();
    if text.contains('\n') {
        entry.extend_from_slice(b"MESSAGE\n");
        entry.extend_from_slice(&(text.len() as u64).to_le_bytes());
        entry.extend_from_slice(text.as_bytes());
    } else {
        entry.extend_from_slice(b"MESSAGE=");
        entry.extend_from_slice(text.as_bytes());
    }
    entry.extend_from_slice(b"\nPRIORITY=6\n\n");
    entry
}

fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn quoted_printable(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for byte in text.bytes() {
        let piece = match byte {
            b'\n' => {
                out.push('\n');
                column = 0;
                continue;
            }
            b'=' | 0x80.. => format!("={byte:02X}"),
            _ => char::from(byte).to_string(),
        };
        if column + piece.len() > width {
            out += "=\n";
            column = 0;
        }
        column += piece.len();
        out += &piece;
    }
    out + "\n"
}

fn wrapped(encoded: &str, width: usize, before: &str) -> String {
    let lines = encoded.as_bytes().chunks(width).map(|line| String::from_utf8_lossy(line).into_owned());
    lines.map(|line| format!("{before}{line}\n")).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

fn wide(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(bytes).collect()
}
