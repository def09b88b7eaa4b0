use reqwest::header::HeaderMap;

use crate::client::{Rounds, Source, transport};
use crate::patience::Patience;
use crate::{FetchError, Fetcher};

impl Fetcher {
    /// Downloads a small document into memory, and returns the URL that delivered it.
    pub async fn document(
        &self,
        urls: &[String],
        limit: u64,
        patience: &Patience,
    ) -> Result<(Vec<u8>, Source), FetchError> {
        let mut rounds = Rounds::new(urls, patience);
        loop {
            let url = rounds.next().await?;
            if let Some(document) = rounds.outcome(self.document_at(url, limit, patience)).await? {
                return Ok((document, rounds.source()));
            }
        }
    }

    async fn document_at(&self, url: &str, limit: u64, patience: &Patience) -> Result<Vec<u8>, FetchError> {
        let too_long = || FetchError::TooLong { url: url.to_owned(), limit };
        let mut response = self.get(url, HeaderMap::new(), patience.idle).await?;
        let expected = response.content_length();
        if expected.is_some_and(|length| length > limit) {
            return Err(too_long());
        }
        let mut body = Vec::new();
        loop {
            let chunk = tokio::time::timeout(patience.idle, response.chunk()).await;
            let chunk = chunk
                .map_err(|_| FetchError::Idle { url: url.to_owned(), seconds: patience.idle.as_secs() })?;
            let Some(chunk) = chunk.map_err(|source| transport(url, source))? else { break };
            if (body.len() + chunk.len()) as u64 > limit {
                return Err(too_long());
            }
            body.extend_from_slice(&chunk);
        }
        let got = body.len() as u64;
        match expected {
            Some(expected) if expected != got => {
                Err(FetchError::Short { url: url.to_owned(), got, expected })
            }
            _ => Ok(body),
        }
    }
}
