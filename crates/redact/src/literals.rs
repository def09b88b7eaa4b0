//! A search for the literals of all rules at once, in any letter case.
//!
//! The same idea as for [known values](crate::known): three bytes at every second position are looked up in an index
//! of those that can occur. For each literal the index has the rarest place of it, so nearly all of a log is passed
//! over; an automaton would have to take one dependent step for every byte. Literals of less than four bytes do not fit
//! this: single bytes are searched one by one, and those of two and three bytes together, by an expression of nothing but
//! them, for which `regex` has a search that looks at many bytes at once.

use std::cmp::Reverse;

use regex::bytes::{Regex, RegexBuilder};

/// Bytes looked up at once, and the distance of the places looked at: a literal needs `GRAM + STRIDE - 1` bytes.
const GRAM: usize = 3;
const STRIDE: usize = 2;
const INDEXED_MIN: usize = GRAM + STRIDE - 1;

/// Places are looked at four at a time.
const STEP: usize = 4 * STRIDE;

/// Slots of the filter before the index, a byte each: 32 KiB, the first-level cache. Bits would take an eighth of the room
/// and twice the instructions.
const SLOT_BITS: u32 = 15;
const SLOTS: usize = 1 << SLOT_BITS;

pub(crate) struct Literals {
    words: Vec<Vec<u8>>,
    /// Not zero where the index has something. Of fixed size, so that the compiler sees that every slot is inside it.
    filter: Box<[u8; SLOTS]>,
    /// Sorted by slot.
    index: Vec<Entry>,
    /// Where in the index the entries of a slot begin.
    buckets: Vec<u16>,
    /// Words too short for the index, in the letter cases they are given in.
    bytes: Vec<(u8, usize)>,
    short: Vec<usize>,
    /// Any of the short words.
    any_short: Regex,
}

#[derive(Clone, Copy)]
struct Entry {
    slot: usize,
    word: usize,
    /// Where in the word the three bytes stand.
    at: usize,
}

/// A word, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) word: usize,
}

// === impl Literals ===

impl Literals {
    /// Words are in lower case, unless they are shorter than four bytes: those are searched for as they are.
    pub(crate) fn new(words: Vec<Vec<u8>>) -> Result<Self, regex::Error> {
        let filter = vec![0; SLOTS].into_boxed_slice();
        let mut filter: Box<[u8; SLOTS]> =
            filter.try_into().unwrap_or_else(|_| unreachable!("the filter is made with this size"));
        let (mut index, mut bytes, mut short) = (Vec::new(), Vec::new(), Vec::new());
        for (number, word) in words.iter().enumerate() {
            if let [byte] = word[..] {
                bytes.push((byte, number));
                continue;
            }
            if word.len() < INDEXED_MIN {
                short.push(number);
                continue;
            }
            let place = rarest_place(word);
            for at in place..place + STRIDE {
                let slot = slot(gram(&word[at..at + GRAM]));
                filter[slot] = 1;
                index.push(Entry { slot, word: number, at });
            }
        }
        index.sort_by_key(|entry| entry.slot);
        let mut buckets = vec![0; SLOTS];
        for (number, entry) in index.iter().enumerate().rev() {
            buckets[entry.slot] = u16::try_from(number).expect("the rules have some hundred words");
        }
        let escaped = |word: &usize| words[*word].iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let alternatives: Vec<String> = short.iter().map(escaped).collect();
        let any_short = RegexBuilder::new(&alternatives.join("|")).unicode(false).build()?;
        Ok(Self { words, filter, index, buckets, bytes, short, any_short })
    }

    /// All occurrences of all words, also overlapping ones, in the order of their places.
    pub(crate) fn find(&self, text: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        for &(byte, word) in &self.bytes {
            found.extend(memchr::memchr_iter(byte, text).map(|start| Found { start, end: start + 1, word }));
        }
        self.find_short(text, &mut found);
        let mut from = 0;
        // Ten bytes hold the four grams and the byte behind the last one.
        while let Some(ten) = text[from..].first_chunk::<10>() {
            let [a, b, c, d] = slots(ten);
            if self.filter[a] | self.filter[b] | self.filter[c] | self.filter[d] != 0 {
                self.look_up_all(text, from, ten, &mut found);
            }
            from += STEP;
        }
        for place in (from..text.len().saturating_sub(GRAM - 1)).step_by(STRIDE) {
            let slot = slot(gram(&text[place..place + GRAM]));
            if self.filter[slot] != 0 {
                self.look_up(text, place, slot, &mut found);
            }
        }
        found.sort_unstable();
        found
    }

    fn find_short(&self, text: &[u8], found: &mut Vec<Found>) {
        let mut from = 0;
        while !self.short.is_empty()
            && let Some(place) = self.any_short.find_at(text, from)
        {
            let start = place.start();
            // One may be the beginning of another, or begin inside another.
            for &word in self.short.iter().filter(|&&word| text[start..].starts_with(&self.words[word])) {
                found.push(Found { start, end: start + self.words[word].len(), word });
            }
            from = start + 1;
        }
    }

    /// Looks up what one of four places may hold. Apart from the loop that comes here, because that must stay small.
    #[inline(never)]
    fn look_up_all(&self, text: &[u8], from: usize, ten: &[u8; 10], found: &mut Vec<Found>) {
        for (i, slot) in slots(ten).into_iter().enumerate() {
            if self.filter[slot] != 0 {
                self.look_up(text, from + i * STRIDE, slot, found);
            }
        }
    }

    #[inline]
    fn look_up(&self, text: &[u8], place: usize, slot: usize, found: &mut Vec<Found>) {
        for entry in
            self.index[usize::from(self.buckets[slot])..].iter().take_while(|entry| entry.slot == slot)
        {
            let word = &self.words[entry.word];
            let Some(start) = place.checked_sub(entry.at) else { continue };
            if text.get(start..start + word.len()).is_some_and(|text| text.eq_ignore_ascii_case(word)) {
                found.push(Found { start, end: start + word.len(), word: entry.word });
            }
        }
    }
}

/// The slots of the four places in ten bytes.
#[inline]
fn slots(ten: &[u8; 10]) -> [usize; 4] {
    // Four loads, each of a byte more than is looked at: the compiler would take larger ones apart.
    let four = |at: usize| u32::from_le_bytes([ten[at], ten[at + 1], ten[at + 2], ten[at + 3]]);
    [slot(four(0)), slot(four(STRIDE)), slot(four(STRIDE * 2)), slot(four(STRIDE * 3))]
}

#[inline]
fn gram(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
}

/// The place in the filter of three bytes without their letter case; a fourth is not looked at. Others may share it; the
/// comparison that follows tells them apart.
#[inline]
fn slot(gram: u32) -> usize {
    // Of twenty thousand numbers the one with which the fewest grams of logs get into a slot where they have no business.
    const SPREAD: u32 = 0x27a0_63e7;
    ((gram & 0x00df_dfdf).wrapping_mul(SPREAD) >> (32 - SLOT_BITS)) as usize
}

/// Where the word has what logs have the least of.
fn rarest_place(word: &[u8]) -> usize {
    // What logs are made of, from the most to the least common: letters, the digits of times, and what JSON and klog put
    // between words.
    const COMMON: &[u8] = b" etaoin0sr\"l1c2:d-m./p3u4h5g=67f89by'vk\\w\nxqjz";
    /// What is not in it is about as common as this place of it.
    const OTHER: usize = 30;
    /// Words that are common although their letters are not: no gram of them, if there is another.
    const COMMON_WORDS: &[u8] =
        b" config user/service.com code kind\":\" kind\": \"priority password login in \
        created _comm _se origin add ";
    let is_common = |gram: &[u8]| COMMON_WORDS.windows(GRAM).any(|common| common == gram);
    let rarity = |byte: &u8| COMMON.iter().position(|common| common == byte).unwrap_or(OTHER);
    let rarity = |place: &usize| {
        let grams = &word[*place..*place + INDEXED_MIN];
        let common = grams.windows(GRAM).filter(|gram| is_common(gram)).count();
        (Reverse(common), grams.iter().map(rarity).sum::<usize>())
    };
    (0..=word.len() - INDEXED_MIN).max_by_key(rarity).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_at_every_place_in_any_case() {
        let literals = Literals::new(
            [&b"token"[..], b"id-token", b"eyJ", b"_key", b"ey", b"$"].map(<[u8]>::to_vec).to_vec(),
        )
        .unwrap();
        for before in 0..20 {
            for after in 0..12 {
                let text = format!("{}ID-ToKeN_KEYeyJ$ey{}", ".".repeat(before), ".".repeat(after));
                let found = literals.find(text.as_bytes());
                let words: Vec<(usize, usize)> =
                    found.iter().map(|found| (found.start - before, found.word)).collect();
                assert_eq!(words, [(0, 1), (3, 0), (8, 3), (12, 4), (12, 2), (15, 5), (16, 4)], "{text}");
            }
        }
    }
}
