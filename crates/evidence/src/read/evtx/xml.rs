//! Binary XML: tokens, UTF-16 text, names stored once per chunk, and templates whose placeholders a record
//! fills in.

use std::ops::Range;

use super::{CHUNK, u32_at};

/// Templates in values of templates: Windows nests one level.
const MAX_NESTING: u32 = 6;
/// Maximum element depth.
const MAX_ELEMENTS: usize = 32;
/// Maximum number of placeholders per template.
const MAX_VALUES: usize = 4096;
/// Limit of tokens and characters per chunk. All records can share a template, so the bytes do not bound the
/// work; real chunks need a tenth of this.
const MAX_WORK: usize = 4 << 20;

const TEXT: u8 = 0x01;
const TEXTS: u8 = 0x81;
const XML: u8 = 0x21;

/// The fields of a record.
#[derive(Debug, Default)]
pub(super) struct Event {
    pub(super) provider: String,
    pub(super) id: String,
    pub(super) level: String,
    pub(super) computer: String,
    pub(super) data: Vec<String>,
}

/// Work done for a chunk so far.
#[derive(Debug, Default)]
pub struct Work(usize);

struct Parser<'a> {
    chunk: &'a [u8],
    work: &'a mut Work,
    event: Event,
    elements: Vec<Element>,
    attribute: Option<String>,
}

#[derive(Default)]
struct Element {
    name: String,
    label: String,
    text: String,
}

struct Value {
    kind: u8,
    bytes: Range<usize>,
}

// === impl Event ===

impl Event {
    /// Parses the binary XML at this location of the chunk; `None` if it is damaged or exceeds a limit.
    pub(super) fn parse(chunk: &[u8], place: Range<usize>, work: &mut Work) -> Option<Self> {
        let mut parser =
            Parser { chunk, work, event: Self::default(), elements: Vec::new(), attribute: None };
        parser.fragment(place, &[], 0)?;
        Some(parser.event)
    }
}

// === impl Parser ===

impl Parser<'_> {
    fn fragment(&mut self, place: Range<usize>, values: &[Value], nesting: u32) -> Option<()> {
        if nesting > MAX_NESTING || place.end > self.chunk.len() {
            return None;
        }
        let mut at = place.start;
        while at < place.end {
            self.spend(1)?;
            let token = self.chunk[at];
            at += 1;
            // The next bit means that more of the same kind follows.
            match token & !0x40 {
                0x00 => break,
                0x01 => at = self.open_element(at, token & 0x40 != 0)?,
                0x02 => self.attribute = None,
                0x03 | 0x04 => {
                    self.attribute = None;
                    self.close_element();
                }
                0x05 => {
                    let is_text = *self.chunk.get(at)? == TEXT;
                    let (text, next) = self.counted(at + 1)?;
                    at = next;
                    if is_text {
                        self.say(&text)?;
                    }
                }
                0x06 => {
                    let (name, next) = self.name(at)?;
                    self.attribute = Some(name);
                    at = next;
                }
                0x07 => {
                    let (text, next) = self.counted(at)?;
                    self.say(&text)?;
                    at = next;
                }
                0x08 => {
                    let unit = u16_at(self.chunk, at)?;
                    let c = char::from_u32(u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER);
                    self.say(c.encode_utf8(&mut [0; 4]))?;
                    at += 2;
                }
                0x09 => {
                    let (name, next) = self.name(at)?;
                    self.say(match name.as_str() {
                        "amp" => "&",
                        "lt" => "<",
                        "gt" => ">",
                        "quot" => "\"",
                        "apos" => "'",
                        _ => "",
                    })?;
                    at = next;
                }
                0x0a => at = self.name(at)?.1,
                0x0b => at = self.counted(at)?.1,
                0x0c => at = self.template(at, place.end, nesting)?,
                0x0d | 0x0e => {
                    let number = usize::from(u16_at(self.chunk, at)?);
                    at += 3;
                    if let Some(value) = values.get(number) {
                        self.fill_in(value, nesting)?;
                    }
                }
                0x0f => at += 3,
                _ => return None,
            }
        }
        Some(())
    }

    /// Parses a template and its values; returns the offset after them.
    fn template(&mut self, at: usize, end: usize, nesting: u32) -> Option<usize> {
        let definition = u32_at(self.chunk, at + 5)? as usize;
        let mut next = at + 9;
        let body = definition.checked_add(24)?;
        let body_length = u32_at(self.chunk, definition.checked_add(20)?)? as usize;
        let body_end = body.checked_add(body_length).filter(|end| *end <= self.chunk.len())?;
        // The first record that uses a template contains it.
        if definition == next {
            next = body_end;
        }
        let count = u32_at(self.chunk, next)? as usize;
        if count > MAX_VALUES {
            return None;
        }
        self.spend(count)?;
        next += 4;
        let mut bytes = next + 4 * count;
        let mut values = Vec::with_capacity(count);
        for number in 0..count {
            let place = next + 4 * number;
            let length = usize::from(u16_at(self.chunk, place)?);
            let kind = *self.chunk.get(place + 2)?;
            values.push(Value { kind, bytes: bytes..bytes + length });
            bytes += length;
        }
        if bytes > end {
            return None;
        }
        self.fragment(body..body_end, &values, nesting + 1)?;
        Some(bytes)
    }

    fn open_element(&mut self, at: usize, has_attributes: bool) -> Option<usize> {
        // Inside values, the two bytes of the dependency ID are omitted without any indication.
        let (name, mut next) = [6, 4].into_iter().find_map(|before| {
            let length = u32_at(self.chunk, at + before - 4)? as usize;
            self.name(at + before).filter(|_| length <= CHUNK)
        })?;
        if has_attributes {
            next += 4;
        }
        if self.elements.len() == MAX_ELEMENTS {
            return None;
        }
        self.spend(name.len())?;
        self.elements.push(Element { name, ..Element::default() });
        Some(next)
    }

    fn close_element(&mut self) {
        let Some(element) = self.elements.pop() else { return };
        let text = element.text.trim();
        if text.is_empty() {
            return;
        }
        let event = &mut self.event;
        let is_inside = |name: &str| self.elements.iter().any(|outer| outer.name == name);
        if is_inside("System") {
            match element.name.as_str() {
                "EventID" => text.clone_into(&mut event.id),
                "Level" => text.clone_into(&mut event.level),
                "Computer" => text.clone_into(&mut event.computer),
                _ => {}
            }
        } else {
            let label = match (element.label.as_str(), element.name.as_str()) {
                ("", "Data") => "",
                ("", name) => name,
                (label, _) => label,
            };
            event.data.push(if label.is_empty() { text.to_owned() } else { format!("{label}={text}") });
        }
    }

    fn say(&mut self, text: &str) -> Option<()> {
        self.spend(text.len())?;
        let Some(element) = self.elements.last_mut() else { return Some(()) };
        match self.attribute.as_deref() {
            None => element.text += text,
            Some("Name") if element.name == "Provider" => self.event.provider += text,
            Some("Name") => element.label += text,
            Some(_) => {}
        }
        Some(())
    }

    fn fill_in(&mut self, value: &Value, nesting: u32) -> Option<()> {
        let bytes = self.chunk.get(value.bytes.clone())?;
        match value.kind {
            XML => {
                let depth = self.elements.len();
                self.fragment(value.bytes.clone(), &[], nesting + 1)?;
                self.elements.truncate(depth);
                Some(())
            }
            TEXTS => self.say(&utf16(bytes).trim_end_matches('\0').replace('\0', "\n")),
            kind => self.say(&plain_value(kind, bytes)),
        }
    }

    /// Parses a name, which is inline at its first use in the chunk; returns it and the following offset.
    fn name(&self, at: usize) -> Option<(String, usize)> {
        let place = u32_at(self.chunk, at)? as usize;
        let here = at + 4;
        let letters = place.checked_add(6)?;
        let (name, end) = self.counted(letters)?;
        let is_ended = self.chunk.get(end..end + 2)? == [0, 0];
        is_ended.then_some((name, if place == here { end + 2 } else { here }))
    }

    /// Parses text with a character count; returns it and the following offset.
    fn counted(&self, at: usize) -> Option<(String, usize)> {
        let end = at + 2 + 2 * usize::from(u16_at(self.chunk, at)?);
        Some((utf16(self.chunk.get(at + 2..end)?), end))
    }

    fn spend(&mut self, work: usize) -> Option<()> {
        self.work.0 += work;
        (self.work.0 <= MAX_WORK).then_some(())
    }
}

/// Formats a value as text; bytes and user identities are omitted.
fn plain_value(kind: u8, bytes: &[u8]) -> String {
    let number = || bytes.iter().take(8).rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    // The highest bit present is the sign.
    let signed = || {
        let unused = 64 - 8 * bytes.len().clamp(1, 8);
        (number() << unused).cast_signed() >> unused
    };
    match kind {
        TEXT => utf16(bytes).trim_end_matches('\0').to_owned(),
        0x02 => String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned(),
        0x03 | 0x05 | 0x07 | 0x09 => signed().to_string(),
        0x04 | 0x06 | 0x08 | 0x0a => number().to_string(),
        0x0d => (number() != 0).to_string(),
        0x10 | 0x14 | 0x15 => format!("{:#x}", number()),
        _ => String::new(),
    }
}

fn utf16(bytes: &[u8]) -> String {
    let units = bytes.as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair));
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
