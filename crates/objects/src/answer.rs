//! What stores answer: a little XML, read without trust. Pure.

use jiff::Timestamp;

/// Objects of one page; stores send no more than this unasked.
const MAX_LISTED: usize = 1000;
/// Bytes of a store's reason that are shown.
const MAX_REASON: usize = 300;

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    pub bytes: u64,
    pub modified: Option<Timestamp>,
}

/// A page of a listing, and what to ask for the next with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub objects: Vec<Listed>,
    pub next: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store's listing cannot be understood")]
pub struct InvalidAnswer;

/// Reads a page of `ListObjectsV2`, asked for with `encoding-type=url`.
pub fn page(xml: &[u8]) -> Result<Page, InvalidAnswer> {
    let text = std::str::from_utf8(xml).map_err(|_| InvalidAnswer)?;
    let inside = element(text, "ListBucketResult").ok_or(InvalidAnswer)?.0;
    // Not every store does what it was asked for.
    let escaped = element(inside, "EncodingType").is_some_and(|(value, _)| value.trim() == "url");
    let mut page = Page::default();
    let mut rest = inside;
    while let Some((object, after)) = element(rest, "Contents") {
        if page.objects.len() == MAX_LISTED {
            return Err(InvalidAnswer);
        }
        let part = |name| element(object, name).map(|(value, _)| value);
        let key = unescape(part("Key").ok_or(InvalidAnswer)?);
        let key = if escaped { unescape_url(&key).ok_or(InvalidAnswer)? } else { key };
        let bytes = part("Size").and_then(|size| size.trim().parse().ok()).ok_or(InvalidAnswer)?;
        let modified = part("LastModified").and_then(|time| time.trim().parse().ok());
        page.objects.push(Listed { key, bytes, modified });
        rest = after;
    }
    let truncated = element(inside, "IsTruncated").is_some_and(|(value, _)| value.trim() == "true");
    if truncated {
        let next = element(inside, "NextContinuationToken").map(|(value, _)| unescape(value));
        page.next = Some(next.filter(|next| !next.is_empty()).ok_or(InvalidAnswer)?);
    }
    Ok(page)
}

/// The code and the words of a refusal, as far as there are any.
pub fn refusal(xml: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(xml);
    let part = |name| {
        let value = element(&text, name).map(|(value, _)| unescape(value)).unwrap_or_default();
        value.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect::<String>()
    };
    (part("Code"), part("Message"))
}

/// The inside of the first element of this name, and what comes after it. Elements of the same name are not nested in what
/// stores send.
fn element<'a>(text: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let mut from = 0;
    loop {
        let start = from + text.get(from..)?.find(&format!("<{name}"))?;
        let after = &text[start + 1 + name.len()..];
        match after.bytes().next()? {
            b'>' | b' ' | b'\n' | b'\r' | b'\t' | b'/' => {
                let (head, rest) = after.split_once('>')?;
                if head.ends_with('/') {
                    return Some(("", rest));
                }
                return rest.split_once(&format!("</{name}>"));
            }
            // A longer name.
            _ => from = start + 1,
        }
    }
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let entity = after.split_once(';').and_then(|(entity, after)| {
            let character = match entity {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                "apos" => '\'',
                _ => {
                    let number = entity.strip_prefix('#')?;
                    let number = match number.strip_prefix('x') {
                        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                        None => number.parse().ok()?,
                    };
                    char::from_u32(number)?
                }
            };
            Some((character, after))
        });
        // What is no entity is an ampersand.
        let (character, after) = entity.unwrap_or(('&', after));
        plain.push(character);
        rest = after;
    }
    plain.push_str(rest);
    plain
}

/// `%XX` and `+` as a form has them.
fn unescape_url(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit =
                    |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                bytes.push(digit(*high)? << 4 | digit(*low)?);
                after
            }
            (b'%', _) => return None,
            (b'+', after) => {
                bytes.push(b' ');
                after
            }
            (byte, after) => {
                bytes.push(*byte);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LISTING: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>logs</Name><EncodingType>url</EncodingType><Prefix>a/</Prefix><KeyCount>2</KeyCount>
<MaxKeys>2</MaxKeys><IsTruncated>true</IsTruncated><NextContinuationToken>1&amp;2==</NextContinuationToken>
<Contents><Key>a/one%20%C3%BC</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>&quot;x&quot;</ETag><Size>7</Size></Contents>
<Contents><Key>a/two</Key><Size>0</Size><Owner/></Contents></ListBucketResult>"#;

    #[test]
    fn a_listing_is_read() {
        let page = page(LISTING.as_bytes()).unwrap();
        assert_eq!(page.next.as_deref(), Some("1&2=="));
        let modified = Some("2026-01-02T03:04:05Z".parse().unwrap());
        assert_eq!(page.objects[0], Listed { key: "a/one ü".to_owned(), bytes: 7, modified });
        assert_eq!(page.objects[1], Listed { key: "a/two".to_owned(), bytes: 0, modified: None });
        assert_eq!(page.objects.len(), 2);
    }

    #[test]
    fn a_store_that_escapes_nothing_is_understood() {
        let xml =
            "<ListBucketResult><Contents><Key>a+b%41 &amp;</Key><Size>1</Size></Contents></ListBucketResult>";
        assert_eq!(page(xml.as_bytes()).unwrap().objects[0].key, "a+b%41 &");
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        for bad in [
            "",
            "<html></html>",
            "<ListBucketResult><Contents></Contents></ListBucketResult>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%zz</Key><Size>1</Size></Contents></ListBucketResult>",
        ] {
            assert_eq!(page(bad.as_bytes()), Err(InvalidAnswer), "{bad}");
        }
    }

    #[test]
    fn a_refusal_tells_its_code() {
        let xml =
            b"<Error><Code>SignatureDoesNotMatch</Code><Message>a &lt;b&gt;\x1b[31m &#233;</Message></Error>";
        assert_eq!(refusal(xml), ("SignatureDoesNotMatch".to_owned(), "a <b>[31m é".to_owned()));
        assert_eq!(refusal(b"\xff nothing"), (String::new(), String::new()));
    }

    proptest! {
        #[test]
        fn no_answer_breaks_the_reader(bytes in "(<|>|/|&|;|%|ListBucketResult|Contents|Key|Size|[a-z0-9 ]){0,60}") {
            let _ = page(bytes.as_bytes());
            let _ = refusal(bytes.as_bytes());
        }
    }
}
