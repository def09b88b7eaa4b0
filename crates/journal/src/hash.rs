//! The two hash functions of the journal format.
//!
//! Files with the *keyed hash* flag place a field by SipHash-2-4 with the file's own ID as key; older files use Bob
//! Jenkins' lookup3. An entry's `xor_hash` is always lookup3, so that the same entry has the same cursor in every file.

use siphasher::sip::SipHasher24;

/// Returns SipHash-2-4 of `data` with a 16-byte key.
pub(crate) fn siphash24(data: &[u8], key: [u8; 16]) -> u64 {
    SipHasher24::new_with_key(&key).hash(data)
}

/// Returns lookup3 (`hashlittle2` with both seeds zero), with the first result in the upper half.
pub(crate) fn jenkins64(data: &[u8]) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "lookup3 seeds with the length modulo 2^32")]
    let seed = 0xdead_beef_u32.wrapping_add(data.len() as u32);
    let mut v = [seed; 3];
    let (blocks, rest) = data.as_chunks::<12>();
    // The last block, even a full one, gets the final mix instead of the ordinary one.
    let (blocks, last) = match (blocks.split_last(), rest) {
        (Some((last, blocks)), []) => (blocks, last.as_slice()),
        _ => (blocks, rest),
    };
    for block in blocks {
        add_block(&mut v, block);
        mix(&mut v);
    }
    if !last.is_empty() {
        let mut block = [0; 12];
        block[..last.len()].copy_from_slice(last);
        add_block(&mut v, &block);
        final_mix(&mut v);
    }
    u64::from(v[2]) << 32 | u64::from(v[1])
}

fn add_block(v: &mut [u32; 3], block: &[u8; 12]) {
    let (words, _) = block.as_chunks::<4>();
    for (state, word) in v.iter_mut().zip(words) {
        *state = state.wrapping_add(u32::from_le_bytes(*word));
    }
}

fn mix([a, b, c]: &mut [u32; 3]) {
    for [first, second, third] in [[4, 6, 8], [16, 19, 4]] {
        *a = a.wrapping_sub(*c) ^ c.rotate_left(first);
        *c = c.wrapping_add(*b);
        *b = b.wrapping_sub(*a) ^ a.rotate_left(second);
        *a = a.wrapping_add(*c);
        *c = c.wrapping_sub(*b) ^ b.rotate_left(third);
        *b = b.wrapping_add(*a);
    }
}

fn final_mix([a, b, c]: &mut [u32; 3]) {
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(14));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(11));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(25));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(16));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(4));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(14));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(24));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_gives_the_reference_vectors() {
        let key = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let input: Vec<u8> = (0..63).collect();
        assert_eq!(siphash24(&input[..0], key), 0x726f_db47_dd0e_0e31);
        assert_eq!(siphash24(&input[..1], key), 0x74f8_39c5_93dc_67fd);
        assert_eq!(siphash24(&input[..8], key), 0x93f5_f579_9a93_2462);
        assert_eq!(siphash24(&input[..15], key), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn lookup3_gives_the_values_of_its_own_self_test() {
        assert_eq!(jenkins64(b""), 0xdead_beef_dead_beef);
        assert_eq!(jenkins64(b"Four score and seven years ago"), 0x1777_0551_ce72_26e6);
    }
}
