//! A durable consumer of a stream: the server remembers which messages were settled, whichever client fetches the rest.

use std::time::Duration;

use serde_json::{Value, json};

use super::connection::{Came, Connection, NatsError, PATIENCE};
use super::protocol::{status, words};

/// Time after which an unsettled message is redelivered.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);
/// Delay before a message settled as [`Settlement::Later`] is redelivered.
const LATER: Duration = Duration::from_secs(30);
/// Maximum number of delivered but unsettled messages, for all clients of the consumer.
const MAX_PENDING: u64 = 1000;
/// Time that the server waits for a message.
const WAIT: Duration = Duration::from_secs(20);
/// Timeout for each message.
const EACH_WITHIN: Duration = WAIT.saturating_add(PATIENCE);

/// A durable consumer, identified by the names of its stream and its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    stream: String,
    name: String,
}

/// A message of the stream that is not settled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `None` for a message above the size limit.
    pub body: Option<Vec<u8>>,
    /// Subject for the settlement.
    reply: String,
}

/// The settlement of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    Taken,
    /// Not redelivered.
    Never,
    /// Redelivered after a while.
    Later,
}

// === impl Consumer ===

impl Consumer {
    /// Opens the durable consumer of this name on the stream of `subject.>`, and creates it if necessary.
    pub async fn open(connection: &mut Connection, subject: &str, name: &str) -> Result<Self, NatsError> {
        let subjects = format!("{subject}.>");
        let found = connection.ask("$JS.API.STREAM.NAMES", &json!({"subject": subjects})).await?;
        good(&found)?;
        let stream = found["streams"][0].as_str().ok_or(NatsError::NoStream(subjects.clone()))?;
        // The name becomes a part of subjects.
        if stream.chars().any(|c| c.is_whitespace() || c.is_control() || ".*>".contains(c)) {
            return Err(NatsError::Odd);
        }
        let consumer = Self { stream: stream.to_owned(), name: name.to_owned() };
        let Self { stream, name } = &consumer;
        let known = connection.ask(&format!("$JS.API.CONSUMER.INFO.{stream}.{name}"), &json!({})).await?;
        if known["error"].is_object() {
            let config = json!({
                "durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", "filter_subject": subjects,
                "ack_wait": nanoseconds(SETTLE_WITHIN), "max_ack_pending": MAX_PENDING,
            });
            let wish = json!({"stream_name": stream, "config": config});
            let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}");
            good(&connection.ask(&subject, &wish).await?)?;
        }
        Ok(consumer)
    }

    /// Returns waiting messages, at most `most`. If there are none, waits for the next one and returns nothing after a
    /// timeout.
    pub async fn take(&self, connection: &mut Connection, most: usize) -> Result<Vec<Message>, NatsError> {
        let waiting = self.fetch(connection, most, &json!({"batch": most, "no_wait": true})).await?;
        if !waiting.is_empty() {
            return Ok(waiting);
        }
        self.fetch(connection, 1, &json!({"batch": 1, "expires": nanoseconds(WAIT)})).await
    }

    /// Settles a message. If the settlement is lost, the message is redelivered.
    pub async fn settle(
        &self,
        connection: &mut Connection,
        message: &Message,
        settlement: Settlement,
    ) -> Result<(), NatsError> {
        let word = match settlement {
            Settlement::Taken => "+ACK".to_owned(),
            Settlement::Never => "+TERM".to_owned(),
            Settlement::Later => format!("-NAK {}", json!({"delay": nanoseconds(LATER)})),
        };
        let said = connection.say(&message.reply, None, word.as_bytes());
        tokio::time::timeout(PATIENCE, said).await.unwrap_or(Err(NatsError::Late(PATIENCE)))
    }

    async fn fetch(
        &self,
        connection: &mut Connection,
        most: usize,
        wish: &Value,
    ) -> Result<Vec<Message>, NatsError> {
        let inbox = connection.next_reply();
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream, self.name);
        let wish = wish.to_string();
        let said = connection.say(&subject, Some(&inbox), wish.as_bytes());
        tokio::time::timeout(PATIENCE, said).await.unwrap_or(Err(NatsError::Late(PATIENCE)))?;
        let mut messages = Vec::new();
        while messages.len() < most {
            let came = tokio::time::timeout(EACH_WITHIN, connection.next()).await;
            let Came { subject, reply, headers, body } = match came {
                Ok(came) => came?,
                Err(_) if messages.is_empty() => return Err(NatsError::Late(EACH_WITHIN)),
                // Return the received messages for settlement; the next call reports the failed connection.
                Err(_) => break,
            };
            match (reply, status(&headers)) {
                // A keepalive, or the end of another request.
                (_, Some(100)) => {}
                (_, Some(_)) if subject != inbox => {}
                (_, Some(404 | 408)) => break,
                (_, Some(_)) => {
                    let text = String::from_utf8_lossy(&headers);
                    return Err(NatsError::Said(words(text.trim())));
                }
                // A late message of the previous request is valid, too.
                (Some(reply), None) => messages.push(Message { body, reply }),
                (None, None) => return Err(NatsError::Odd),
            }
        }
        Ok(messages)
    }
}

fn good(answer: &Value) -> Result<(), NatsError> {
    let Some(error) = answer["error"].as_object() else { return Ok(()) };
    let text = error.get("description").and_then(Value::as_str).unwrap_or("an error without words");
    Err(NatsError::Said(words(text)))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::nats::connection::tests::pair;

    fn consumer() -> Consumer {
        Consumer { stream: "R".to_owned(), name: "hub".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_before_the_server_stopped_is_not_lost() {
        let (mut connection, mut theirs) = pair();
        theirs.write_all(b"MSG _INBOX.x.1 1 back 3\r\none\r\nMSG _INBOX.x.1 1 back 3\r\ntw").await.unwrap();
        let came = consumer().take(&mut connection, 16).await.unwrap();
        let one = Message { body: Some(b"one".to_vec()), reply: "back".to_owned() };
        assert_eq!(came, [one]);
        consumer().settle(&mut connection, &came[0], Settlement::Taken).await.unwrap();
        let more = consumer().take(&mut connection, 16).await;
        assert!(matches!(more, Err(NatsError::GivenUp)), "{more:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn each_message_has_its_own_time() {
        let (mut connection, mut theirs) = pair();
        let slow = async {
            for _ in 0..4 {
                tokio::time::sleep(EACH_WITHIN.mul_f32(0.9)).await;
                theirs.write_all(b"MSG _INBOX.x.1 1 back 3\r\none\r\n").await.unwrap();
            }
        };
        let consumer = consumer();
        let (came, ()) = tokio::join!(consumer.take(&mut connection, 4), slow);
        assert_eq!(came.unwrap().len(), 4);
        let (mut connection, _theirs) = pair();
        let nothing = consumer.take(&mut connection, 4).await;
        assert!(matches!(nothing, Err(NatsError::Late(EACH_WITHIN))), "{nothing:?}");
    }
}
