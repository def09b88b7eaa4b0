use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static STATE: LazyLock<AtomicU64> = LazyLock::new(|| {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_ok() {
        return AtomicU64::new(u64::from_le_bytes(bytes));
    }
    // The clock replaces missing system randomness: the numbers only need to differ.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    AtomicU64::new(u64::from(now.subsec_nanos()) << 32 | now.as_secs() & 0xffff_ffff)
});

/// Returns a unique, non-negative number that looks random. It protects no secret: it identifies a dial, selects an
/// agent, or varies a pause.
pub(crate) fn random() -> i64 {
    /// The increment of SplitMix64, which is a counter with a mixing function.
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
    /// Seed of a simulation, whose numbers are reproducible.
    pub(crate) static SEEDED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

fn stirred(mut mixed: u64) -> i64 {
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31).cast_signed() & i64::MAX
}

/// Returns a globally unique name: a random UUID.
pub fn unique_id() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        bytes[..8].copy_from_slice(&random().to_le_bytes());
        bytes[8..].copy_from_slice(&random().to_le_bytes());
    }
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
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
