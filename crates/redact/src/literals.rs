//! Case-insensitive search for the literals of all rules in one pass.
//!
//! The algorithm resembles that for [known values](crate::known): three bytes at each second position are
//! looked up in an index of possible values. The index has the rarest position of each literal, so that
//! almost all of a log is skipped. An automaton would need one dependent step per byte. Literals shorter than
//! four bytes do not fit this scheme. Single bytes are searched separately. Literals of two and three bytes
//! are searched together by an expression for which `regex` has a vectorized search.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use regex::bytes::{Regex, RegexBuilder};

/// Bytes per lookup, and the distance between positions: a literal needs `GRAM + STRIDE - 1` bytes.
const GRAM: usize = 3;
const STRIDE: usize = 2;
const INDEXED_MIN: usize = GRAM + STRIDE - 1;

/// Four positions are checked per step.
const STEP: usize = 4 * STRIDE;

/// Slots of the filter before the index, one byte each: 32 KiB, the first-level cache. Bits would take an
/// eighth of the space and twice the instructions.
const SLOT_BITS: u32 = 15;
const SLOTS: usize = 1 << SLOT_BITS;

pub(crate) struct Literals {
    words: Vec<Vec<u8>>,
    /// Nonzero where the index has entries. Fixed size, so that the compiler can remove bounds checks.
    filter: Box<[u8; SLOTS]>,
    /// Sorted by slot.
    index: Vec<Entry>,
    /// Offset of each slot's entries in the index.
    buckets: Vec<u16>,
    /// Words too short for the index, in their given letter case.
    bytes: Vec<(u8, usize)>,
    short: Vec<Short>,
}

/// Words of equal length: a combined search for two and three bytes would be as imprecise as one for two.
struct Short {
    words: Vec<usize>,
    any: Regex,
}

#[derive(Clone, Copy)]
struct Entry {
    slot: usize,
    word: usize,
    /// Offset of the three bytes in the word.
    at: usize,
}

/// A word and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) word: usize,
}

// === impl Literals ===

impl Literals {
    /// Creates the search.
    ///
    /// Words are in lower case, except those shorter than four bytes, which are matched case-sensitively.
    pub(crate) fn new(words: Vec<Vec<u8>>) -> Result<Self, regex::Error> {
        let filter = vec![0; SLOTS].into_boxed_slice();
        let mut filter: Box<[u8; SLOTS]> =
            filter.try_into().unwrap_or_else(|_| unreachable!("the filter is made with this size"));
        let (mut index, mut bytes) = (Vec::new(), Vec::new());
        let mut short: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let common: HashSet<usize> = COMMON_TEXT.windows(GRAM).map(|common| slot(gram(common))).collect();
        for (number, word) in words.iter().enumerate() {
            if let [byte] = word[..] {
                bytes.push((byte, number));
                continue;
            }
            if word.len() < INDEXED_MIN {
                short.entry(word.len()).or_default().push(number);
                continue;
            }
            let place = rarest_place(word, &common);
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
        let short = short.into_values().map(|group| {
            let alternatives: Vec<String> = group.iter().map(escaped).collect();
            let any = RegexBuilder::new(&alternatives.join("|")).unicode(false).build()?;
            Ok(Short { words: group, any })
        });
        let short = short.collect::<Result<_, regex::Error>>()?;
        Ok(Self { words, filter, index, buckets, bytes, short })
    }

    /// Returns all occurrences of all words, including overlapping ones, by offset.
    pub(crate) fn find(&self, text: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        for &(byte, word) in &self.bytes {
            found.extend(memchr::memchr_iter(byte, text).map(|start| Found { start, end: start + 1, word }));
        }
        self.find_short(text, &mut found);
        let mut from = 0;
        // Ten bytes contain the four grams and the byte after the last one.
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
        for short in &self.short {
            let mut from = 0;
            while let Some(place) = short.any.find_at(text, from) {
                let (start, end) = (place.start(), place.end());
                let word = short.words.iter().find(|&&word| self.words[word] == text[start..end]);
                found.extend(word.map(|&word| Found { start, end, word }));
                // Another one may start inside this one.
                from = start + 1;
            }
        }
    }

    /// Looks up the candidates at four positions.
    ///
    /// Separate from the calling loop, because that must stay small.
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

/// Returns the slots of the four positions in ten bytes.
#[inline]
fn slots(ten: &[u8; 10]) -> [usize; 4] {
    // Four loads with one unused byte each: the compiler would split larger loads.
    let four = |at: usize| u32::from_le_bytes([ten[at], ten[at + 1], ten[at + 2], ten[at + 3]]);
    [slot(four(0)), slot(four(STRIDE)), slot(four(STRIDE * 2)), slot(four(STRIDE * 3))]
}

#[inline]
fn gram(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
}

/// Returns the filter slot of three bytes, ignoring letter case and a fourth byte.
///
/// Other grams may share the slot; the following comparison distinguishes them.
#[inline]
fn slot(gram: u32) -> usize {
    // Of 20,000 candidates, the multiplier with the fewest false positives on our log corpus.
    const SPREAD: u32 = 0x27a0_63e7;
    ((gram & 0x00df_dfdf).wrapping_mul(SPREAD) >> (32 - SLOT_BITS)) as usize
}

/// Typical text in node logs. Words with the same slots in the index would be compared at each of these
/// positions.
const COMMON_TEXT: &[u8] =
    b" config user/service.com code kind\":\" kind\": \"priority password login in created _comm _se origin add \
    Jan 02 13:24:05 n1 kubelet[1742]: I0102 13:24:05.678901    1742 kubelet.go:2457] \"SyncLoop (PLEG): event for pod\" \
    pod=\"kube-system/coredns-76f75df574-x7k2p\" event={\"ID\":\"0a1b2c3d-\",\"Type\":\"ContainerStarted\",\"Data\":\"4e5f6a\"} \
    time=\"2026-01-02T03:04:05.678901234Z\" level=info msg=\"StartContainer for \\\"0a1b\\\" returns successfully\" error=\"\" \
    {\"level\":\"info\",\"ts\":\"2026-01-02T03:04:05.678Z\",\"caller\":\"etcdserver/server.go:2514\",\"msg\":\"saved snapshot\",\"took\":\"1ms\"} \
    kernel: [   12.345678] IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready 0000:00:1f.2 status usb node \
    systemd[1]: Started Kubernetes Kubelet. Starting containerd container runtime... Mounted Reached target unit.service \
    containerd[812]: cloud-init[812]: kubeadm container image volume mount namespace apiserver controller-manager scheduler \
    failed error warning Warning ready update create delete unable to connect: connection refused timeout https://10.0.0.1:6443 \
    sha256: Get http open close read write device driver memory process signal exit code name=\"x\" podman stderr stdout F ";

/// Returns the offset of the word's gram that is rarest in logs. `common` are the slots of the common text.
fn rarest_place(word: &[u8], common: &HashSet<usize>) -> usize {
    // Bytes of logs, from the most to the least common: letters, digits of times, and separators of JSON and
    // klog.
    const COMMON: &[u8] = b" etaoin0sr\"l1c2:d-m./p3u4h5g=67f89by'vk\\w\nxqjz";
    /// Rank of all other bytes.
    const OTHER: usize = 30;
    let rarity = |byte: &u8| COMMON.iter().position(|common| common == byte).unwrap_or(OTHER);
    let rarity = |place: &usize| {
        let grams = &word[*place..*place + INDEXED_MIN];
        let common = grams.windows(GRAM).filter(|bytes| common.contains(&slot(gram(bytes)))).count();
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
