/// Returns a non-negative number that looks random. It protects no secret: it identifies a dial, selects an agent, or
/// varies a pause. A simulation seeds its thread.
pub(crate) fn random() -> i64 {
    fastrand::i64(0..)
}

/// Returns a globally unique name: a random UUID.
pub fn unique_id() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        fastrand::fill(&mut bytes);
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
