use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static STATE: LazyLock<AtomicU64> = LazyLock::new(|| {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_ok() {
        return AtomicU64::new(u64::from_le_bytes(bytes));
    }
    // Should the system have no randomness, the clock has to do: numbers only have to differ.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    AtomicU64::new(u64::from(now.subsec_nanos()) << 32 | now.as_secs() & 0xffff_ffff)
});

/// A number, not negative, that differs from the others and looks random. It keeps no secret: it names a dial, chooses
/// an agent, spreads a pause.
pub(crate) fn random() -> i64 {
    /// The step of SplitMix64: a counter, well stirred.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    #[cfg(test)]
    if let Some(seeded) = SEEDED.get() {
        SEEDED.set(Some(seeded.wrapping_add(STEP)));
        return stirred(seeded);
    }
    stirred(STATE.fetch_add(STEP, Ordering::Relaxed))
}

#[cfg(test)]
thread_local! {
    /// A simulation's numbers are the same each time.
    pub(crate) static SEEDED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

fn stirred(mut mixed: u64) -> i64 {
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31).cast_signed() & i64::MAX
}

/// A name that nothing else has: a random UUID.
pub fn unique_id() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        bytes[..8].copy_from_slice(&random().to_le_bytes());
        bytes[8..].copy_from_slice(&random().to_le_bytes());
    }
    let mut bits = u128::from_be_bytes(bytes);
    // Version 4, variant 1: what the rest is made of.
    bits = bits & !(0xf << 76) | 0x4 << 76;
    bits = bits & !(0x3 << 62) | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn unique_ids_are_random_uuids() {
        let (one, other) = (unique_id(), unique_id());
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        assert_eq!(one.as_bytes()[14], b'4', "{one}");
        assert!(b"89ab".contains(&one.as_bytes()[19]), "{one}");
    }

    #[test]
    fn numbers_differ_and_are_spread() {
        let numbers: HashSet<i64> = (0..10_000).map(|_| random()).collect();
        assert_eq!(numbers.len(), 10_000);
        assert!(numbers.iter().all(|number| *number >= 0));
        let odd = numbers.iter().filter(|number| *number % 2 == 1).count();
        assert!((4500..5500).contains(&odd), "{odd}");
    }
}
