//! `data:` URLs, in which Ignition configurations contain files.

use std::io::Read as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// No file of a node's configuration is larger, compressed or not.
const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataUrlError {
    #[error("it is not a `data:` URL")]
    NotData,
    #[error("its Base64 is damaged")]
    Base64,
    #[error("its percent encoding is damaged")]
    Percent,
    #[error("its compression `{0}` is not known")]
    Compression(String),
    #[error("its gzip is damaged")]
    Gzip,
    #[error("it is longer than {MAX_FILE_BYTES} bytes")]
    TooLong,
}

/// Decodes the bytes of a `data:` URL.
pub fn decode(url: &str, compression: Option<&str>) -> Result<Vec<u8>, DataUrlError> {
    let rest = url.strip_prefix("data:").ok_or(DataUrlError::NotData)?;
    let (kind, data) = rest.split_once(',').ok_or(DataUrlError::NotData)?;
    if data.len() as u64 > 3 * MAX_FILE_BYTES {
        return Err(DataUrlError::TooLong);
    }
    let unescaped = percent_decode(data)?;
    let bytes = if kind.split(';').any(|word| word.eq_ignore_ascii_case("base64")) {
        let compact: Vec<u8> = unescaped.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
        BASE64_STANDARD.decode(compact).map_err(|_| DataUrlError::Base64)?
    } else {
        unescaped
    };
    match compression {
        None | Some("") => Ok(bytes),
        Some("gzip") => {
            let mut plain = Vec::new();
            let reader = flate2::read::MultiGzDecoder::new(bytes.as_slice());
            reader.take(MAX_FILE_BYTES + 1).read_to_end(&mut plain).map_err(|_| DataUrlError::Gzip)?;
            if plain.len() as u64 > MAX_FILE_BYTES { Err(DataUrlError::TooLong) } else { Ok(plain) }
        }
        Some(other) => Err(DataUrlError::Compression(other.chars().take(32).collect())),
    }
}

fn percent_decode(text: &str) -> Result<Vec<u8>, DataUrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let pair = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
            let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
            bytes.push(byte.ok_or(DataUrlError::Percent)?);
            rest = tail.get(2..).unwrap_or_default();
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn every_form_servers_use_is_read() {
        assert_eq!(decode("data:,a%20b%0Ac", None).unwrap(), b"a b\nc");
        assert_eq!(decode("data:text/plain;base64,aGk=", None).unwrap(), b"hi");
        assert_eq!(decode("data:;base64,aGk%3D", None).unwrap(), b"hi");
        assert_eq!(decode("data:,", None).unwrap(), b"");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(b"packed").unwrap();
        let url = format!("data:;base64,{}", BASE64_STANDARD.encode(gzip.finish().unwrap()));
        assert_eq!(decode(&url, Some("gzip")).unwrap(), b"packed");
    }

    #[test]
    fn what_is_damaged_is_refused() {
        assert_eq!(decode("https://x", None), Err(DataUrlError::NotData));
        assert_eq!(decode("data:no comma", None), Err(DataUrlError::NotData));
        for (url, error) in [("data:,%", DataUrlError::Percent), ("data:,%é", DataUrlError::Percent)] {
            assert_eq!(decode(url, None), Err(error), "{url}");
        }
        assert_eq!(decode("data:;base64,?", None), Err(DataUrlError::Base64));
        assert_eq!(decode("data:,x", Some("gzip")), Err(DataUrlError::Gzip));
        assert!(matches!(decode("data:,x", Some("lzma")), Err(DataUrlError::Compression(_))));
    }
}
