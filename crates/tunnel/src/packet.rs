//! Konnectivity's `Packet`, byte for byte as upstream's protobuf encodes it, and one additional packet.
//!
//! The wire protocol has no flow control per tunnel. Landfall peers negotiate it in their headers and then grant each
//! other credit with [`Packet::Credit`]. Upstream peers never receive that packet, and would ignore it.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::grpc;

/// Maximum length of error texts, addresses and protocols; longer ones are rejected rather than truncated.
const MAX_TEXT: usize = 64 * 1024;

const DIAL_REQUEST: u64 = 0;
const DIAL_RESPONSE: u64 = 1;
const CLOSE_REQUEST: u64 = 2;
const CLOSE_RESPONSE: u64 = 3;
const DATA: u64 = 4;
const CLOSE_DIAL: u64 = 5;
const DRAIN: u64 = 6;
/// Far above the numbers that upstream may add next.
const CREDIT: u64 = 64;

/// The ID of a tunnel on its agent's stream, assigned by the agent; 0 means none.
pub type ConnectId = i64;
/// The ID of a dial, assigned by its requester, before there is a [`ConnectId`].
pub type Random = i64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    DialRequest {
        protocol: String,
        address: String,
        random: Random,
    },
    DialResponse {
        error: String,
        connect_id: ConnectId,
        random: Random,
    },
    CloseRequest {
        connect_id: ConnectId,
    },
    CloseResponse {
        error: String,
        connect_id: ConnectId,
    },
    Data {
        connect_id: ConnectId,
        data: Bytes,
    },
    CloseDial {
        random: Random,
    },
    Drain,
    /// Permits the tunnel to send `bytes` more, only between peers that negotiated it.
    Credit {
        connect_id: ConnectId,
        bytes: u64,
    },
    /// An unknown kind, which is ignored.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("a packet ends in the middle of a field")]
    Truncated,
    #[error("a number in a packet has more than 64 bits")]
    Number,
    #[error("a field of a packet has an unknown wire type")]
    WireType,
    #[error("a text in a packet is not UTF-8 or is too long")]
    Text,
}

/// One field of a protobuf message.
enum Value {
    Number(u64),
    Bytes(Bytes),
}

/// The fields of any payload, by number; their meaning depends on the packet's type.
#[derive(Default)]
struct Payload {
    numbers: [u64; 4],
    bytes: [Bytes; 4],
}

// === impl Packet ===

impl Packet {
    /// Decodes a message without its gRPC prefix.
    pub fn decode(mut message: Bytes) -> Result<Self, PacketError> {
        let (mut kind, mut payload) = (DIAL_REQUEST, None);
        while message.has_remaining() {
            match field(&mut message)? {
                (1, Value::Number(number)) => kind = number,
                // The payload is a `oneof`: the last field on the wire counts.
                (number @ (2..=8 | CREDIT), Value::Bytes(bytes)) => payload = Some((number, bytes)),
                _ => {}
            }
        }
        let Some(number) = payload_number(kind) else { return Ok(Self::Unknown) };
        let payload = match payload {
            Some((found, bytes)) if found == number => Payload::decode(bytes)?,
            _ => Payload::default(),
        };
        Ok(match kind {
            DIAL_REQUEST => Self::DialRequest {
                protocol: payload.text(1)?,
                address: payload.text(2)?,
                random: payload.signed(3),
            },
            DIAL_RESPONSE => Self::DialResponse {
                error: payload.text(1)?,
                connect_id: payload.signed(2),
                random: payload.signed(3),
            },
            CLOSE_REQUEST => Self::CloseRequest { connect_id: payload.signed(1) },
            CLOSE_RESPONSE => Self::CloseResponse { error: payload.text(1)?, connect_id: payload.signed(2) },
            DATA => Self::Data { connect_id: payload.signed(1), data: payload.bytes[3].clone() },
            CLOSE_DIAL => Self::CloseDial { random: payload.signed(1) },
            DRAIN => Self::Drain,
            CREDIT => Self::Credit { connect_id: payload.signed(1), bytes: payload.numbers[2] },
            _ => Self::Unknown,
        })
    }

    /// Encodes the message with its gRPC prefix, in two pieces so that data is not copied.
    pub fn encode(self) -> [Bytes; 2] {
        let (kind, mut payload, data) = match self {
            Self::DialRequest { protocol, address, random } => (
                DIAL_REQUEST,
                Writer::default().text(1, &protocol).text(2, &address).signed(3, random),
                Bytes::new(),
            ),
            Self::DialResponse { error, connect_id, random } => {
                let payload = Writer::default().text(1, &error).signed(2, connect_id).signed(3, random);
                (DIAL_RESPONSE, payload, Bytes::new())
            }
            Self::CloseRequest { connect_id } => {
                (CLOSE_REQUEST, Writer::default().signed(1, connect_id), Bytes::new())
            }
            Self::CloseResponse { error, connect_id } => {
                (CLOSE_RESPONSE, Writer::default().text(1, &error).signed(2, connect_id), Bytes::new())
            }
            Self::Data { connect_id, data } => (DATA, Writer::default().signed(1, connect_id), data),
            Self::CloseDial { random } => (CLOSE_DIAL, Writer::default().signed(1, random), Bytes::new()),
            Self::Drain => (DRAIN, Writer::default(), Bytes::new()),
            Self::Credit { connect_id, bytes } => {
                (CREDIT, Writer::default().signed(1, connect_id).number(2, bytes), Bytes::new())
            }
            Self::Unknown => (CREDIT + 1, Writer::default(), Bytes::new()),
        };
        if !data.is_empty() {
            payload.tag(3, 2);
            varint(&mut payload.0, data.len() as u64);
        }
        let mut head = Writer::default();
        if kind != DIAL_REQUEST {
            head = head.number(1, kind);
        }
        if let Some(number) = payload_number(kind) {
            head.tag(number, 2);
            varint(&mut head.0, (payload.0.len() + data.len()) as u64);
        }
        let length = head.0.len() + payload.0.len() + data.len();
        let mut message = BytesMut::with_capacity(grpc::PREFIX + length - data.len());
        message.put_slice(&grpc::prefix(length));
        message.put_slice(&head.0);
        message.put_slice(&payload.0);
        [message.freeze(), data]
    }
}

/// Returns the field of `Packet` that contains the payload of a type.
fn payload_number(kind: u64) -> Option<u64> {
    Some(match kind {
        DIAL_REQUEST => 2,
        DIAL_RESPONSE => 3,
        DATA => 4,
        CLOSE_REQUEST => 5,
        CLOSE_RESPONSE => 6,
        CLOSE_DIAL => 7,
        DRAIN => 8,
        CREDIT => CREDIT,
        _ => return None,
    })
}

// === impl Payload ===

impl Payload {
    fn decode(mut bytes: Bytes) -> Result<Self, PacketError> {
        let mut payload = Self::default();
        while bytes.has_remaining() {
            let (number, value) = field(&mut bytes)?;
            let Some(slot) = usize::try_from(number).ok().filter(|slot| *slot < payload.numbers.len()) else {
                continue;
            };
            match value {
                Value::Number(value) => payload.numbers[slot] = value,
                Value::Bytes(value) => payload.bytes[slot] = value,
            }
        }
        Ok(payload)
    }

    fn signed(&self, slot: usize) -> i64 {
        self.numbers[slot].cast_signed()
    }

    fn text(&self, slot: usize) -> Result<String, PacketError> {
        let bytes = &self.bytes[slot];
        if bytes.len() > MAX_TEXT {
            return Err(PacketError::Text);
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| PacketError::Text)
    }
}

fn field(bytes: &mut Bytes) -> Result<(u64, Value), PacketError> {
    let tag = read_varint(bytes)?;
    let value = match tag & 7 {
        0 => Value::Number(read_varint(bytes)?),
        1 => fixed(bytes, 8)?,
        2 => {
            let length = usize::try_from(read_varint(bytes)?).map_err(|_| PacketError::Truncated)?;
            if length > bytes.len() {
                return Err(PacketError::Truncated);
            }
            Value::Bytes(bytes.split_to(length))
        }
        5 => fixed(bytes, 4)?,
        _ => return Err(PacketError::WireType),
    };
    Ok((tag >> 3, value))
}

/// Skips a fixed-size field: no known field has a fixed size.
fn fixed(bytes: &mut Bytes, length: usize) -> Result<Value, PacketError> {
    if bytes.len() < length {
        return Err(PacketError::Truncated);
    }
    bytes.advance(length);
    Ok(Value::Number(0))
}

fn read_varint(bytes: &mut Bytes) -> Result<u64, PacketError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = bytes.try_get_u8().map_err(|_| PacketError::Truncated)?;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return Err(PacketError::Number);
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(PacketError::Number)
}

/// A writer for the fields of a message; as in proto3, empty fields are omitted.
#[derive(Default)]
struct Writer(Vec<u8>);

// === impl Writer ===

impl Writer {
    fn text(mut self, number: u64, text: &str) -> Self {
        if !text.is_empty() {
            self.tag(number, 2);
            varint(&mut self.0, text.len() as u64);
            self.0.extend_from_slice(text.as_bytes());
        }
        self
    }

    fn signed(self, number: u64, value: i64) -> Self {
        self.number(number, value.cast_unsigned())
    }

    fn number(mut self, number: u64, value: u64) -> Self {
        if value != 0 {
            self.tag(number, 0);
            varint(&mut self.0, value);
        }
        self
    }

    fn tag(&mut self, number: u64, wire_type: u64) {
        varint(&mut self.0, number << 3 | wire_type);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "each value is masked to the bits it is cut to")]
fn varint(output: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        output.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    output.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wire(packet: Packet) -> Vec<u8> {
        packet.encode().concat()
    }

    /// Compares with bytes captured between upstream's programs.
    #[test]
    fn bytes_are_upstreams_bytes() {
        let dial =
            Packet::DialRequest { protocol: "tcp".into(), address: "127.0.0.1:18003".into(), random: 1 };
        let mut expected = b"\0\0\0\0\x1a\x12\x18\x0a\x03tcp\x12\x0f127.0.0.1:18003\x18\x01".to_vec();
        assert_eq!(wire(dial), expected);

        let data = Packet::Data { connect_id: 5, data: Bytes::from_static(b"hello") };
        expected = b"\0\0\0\0\x0d\x08\x04\x22\x09\x08\x05\x1a\x05hello".to_vec();
        assert_eq!(wire(data), expected);

        let closed = Packet::CloseResponse { error: String::new(), connect_id: 300 };
        assert_eq!(wire(closed), b"\0\0\0\0\x07\x08\x03\x32\x03\x10\xac\x02");
        assert_eq!(wire(Packet::Drain), b"\0\0\0\0\x04\x08\x06\x42\x00");
    }

    #[test]
    fn the_type_decides_and_unknown_things_are_ignored() {
        let decode = |bytes: &'static [u8]| Packet::decode(Bytes::from_static(bytes));
        assert_eq!(decode(b"\x08\x63"), Ok(Packet::Unknown));
        assert_eq!(decode(b"\x08\x02\x22\x02\x08\x05"), Ok(Packet::CloseRequest { connect_id: 0 }));
        assert_eq!(
            decode(b"\x08\x02\x2a\x02\x08\x05\xfd\x7f\0\0\0\0"),
            Ok(Packet::CloseRequest { connect_id: 5 })
        );
        assert_eq!(
            decode(b""),
            Ok(Packet::DialRequest { protocol: String::new(), address: String::new(), random: 0 })
        );
        assert_eq!(decode(b"\x08"), Err(PacketError::Truncated));
        assert_eq!(decode(b"\x12\x05a"), Err(PacketError::Truncated));
        assert_eq!(decode(b"\x0b"), Err(PacketError::WireType));
        assert_eq!(decode(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), Err(PacketError::Number));
        assert_eq!(decode(b"\x12\x03\x0a\x01\xff"), Err(PacketError::Text));
    }

    fn any_packet() -> impl Strategy<Value = Packet> {
        let data = proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from);
        prop_oneof![
            (".{0,20}", ".{0,20}", any::<i64>())
                .prop_map(|(protocol, address, random)| Packet::DialRequest { protocol, address, random }),
            (".{0,20}", any::<i64>(), any::<i64>())
                .prop_map(|(error, connect_id, random)| Packet::DialResponse { error, connect_id, random }),
            any::<i64>().prop_map(|connect_id| Packet::CloseRequest { connect_id }),
            (".{0,20}", any::<i64>())
                .prop_map(|(error, connect_id)| Packet::CloseResponse { error, connect_id }),
            (any::<i64>(), data).prop_map(|(connect_id, data)| Packet::Data { connect_id, data }),
            any::<i64>().prop_map(|random| Packet::CloseDial { random }),
            Just(Packet::Drain),
            (any::<i64>(), any::<u64>()).prop_map(|(connect_id, bytes)| Packet::Credit { connect_id, bytes }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(packet in any_packet()) {
            let message = Bytes::from(wire(packet.clone())).slice(grpc::PREFIX..);
            prop_assert_eq!(Packet::decode(message), Ok(packet));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Packet::decode(Bytes::from(bytes));
        }
    }
}
