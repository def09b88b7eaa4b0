//! Cloud identities of a workload or a machine: the role of a pod or a virtual machine, with keys and tokens valid
//! for an hour.
//!
//! `object_store` implements the protocol of each cloud. This module restricts the addresses that are queried, and
//! the time.

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use landfall_model::Secret;
use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use object_store::azure::{AzureCredential, AzureCredentialProvider, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::{ClientOptions, RetryConfig};
use reqwest::{Client, Url};

use super::answer::shown;
use super::credentials::{Access, CredentialsError, KeyPair};
use super::dialect::Signer;
use super::location::{Location, Scheme};
use crate::client::Lenders;

/// Total time limit: a machine where no cloud answers must not wait for longer.
const WITHIN: Duration = Duration::from_secs(20);
/// Time limit of one request. Some clouds need two or three, and one may be retried.
const EACH_WITHIN: Duration = Duration::from_secs(6);
const TRIES_AGAIN: usize = 1;
/// A token has some kilobytes.
const MAX_ANSWER: usize = 256 << 10;
/// Variables in which clouds and their webhooks describe the identity endpoint to a pod or a machine.
///
/// No other variable is read: keys in the environment are for other programs.
const OF_AMAZON: [&str; 8] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_METADATA_ENDPOINT",
];
const OF_AZURE: [&str; 6] = [
    "AZURE_CLIENT_ID",
    "AZURE_TENANT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
    "AZURE_MSI_RESOURCE_ID",
    "IDENTITY_ENDPOINT",
];
const OF_GOOGLE: &str = "GOOGLE_APPLICATION_CREDENTIALS";

/// A cloud's identity endpoint; its credentials are kept until they are about to expire.
#[derive(Debug)]
pub(crate) enum Identity {
    Amazon { provider: AwsCredentialProvider, region: String },
    Azure { provider: AzureCredentialProvider, account: String },
    Google { provider: GcpCredentialProvider },
}

/// HTTP client for identity endpoints: by HTTPS, or on this machine and at the addresses that clouds reserve for
/// them.
#[derive(Clone, Debug)]
struct Asker(Lenders);

// === impl Identity ===

impl Identity {
    /// Configures the endpoint from the environment; sends no request yet.
    pub(crate) fn new(
        location: &Location,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CredentialsError> {
        let asker = Asker(Lenders::new().map_err(|error| failed(&error))?);
        let retry =
            RetryConfig { max_retries: TRIES_AGAIN, retry_timeout: EACH_WITHIN, ..RetryConfig::default() };
        let told = |name: &'static str| {
            let value = environment(name).filter(|value| !value.is_empty());
            value.map(|value| (name.to_ascii_lowercase(), value))
        };
        let built = match location.scheme {
            Scheme::Amazon => {
                let builder = AmazonS3Builder::new().with_bucket_name(&location.bucket).with_retry(retry);
                let builder = builder.with_region(location.region()).with_http_connector(asker);
                let builder =
                    OF_AMAZON.into_iter().filter_map(told).try_fold(builder, |builder, (name, value)| {
                        name.parse().map(|key| builder.with_config(key, value))
                    });
                builder.and_then(AmazonS3Builder::build).map(|store| {
                    let region = location.region().to_owned();
                    Self::Amazon { provider: store.credentials().clone(), region }
                })
            }
            Scheme::Azure => {
                let builder =
                    MicrosoftAzureBuilder::new().with_container_name(&location.bucket).with_retry(retry);
                let builder = builder.with_account(location.account()).with_http_connector(asker);
                let builder =
                    OF_AZURE.into_iter().filter_map(told).try_fold(builder, |builder, (name, value)| {
                        name.parse().map(|key| builder.with_config(key, value))
                    });
                builder.and_then(MicrosoftAzureBuilder::build).map(|store| {
                    let account = location.account().to_owned();
                    Self::Azure { provider: store.credentials().clone(), account }
                })
            }
            Scheme::Google => {
                let builder =
                    GoogleCloudStorageBuilder::new().with_bucket_name(&location.bucket).with_retry(retry);
                let builder = builder.with_http_connector(asker);
                let builder = match told(OF_GOOGLE) {
                    Some((_, path)) => builder.with_application_credentials(path),
                    None => builder,
                };
                builder.build().map(|store| Self::Google { provider: store.credentials().clone() })
            }
        };
        built.map_err(|error| failed(&error))
    }

    /// Returns a signer with the current credentials.
    pub(crate) async fn signer(&self) -> Result<Signer, CredentialsError> {
        let lent = tokio::time::timeout(WITHIN, self.ask()).await;
        lent.unwrap_or(Err(CredentialsError::Late { seconds: WITHIN.as_secs() }))
    }

    async fn ask(&self) -> Result<Signer, CredentialsError> {
        match self {
            Self::Amazon { provider, region } => {
                let keys = provider.get_credential().await.map_err(|error| failed(&error))?;
                let session = keys.token.clone().filter(|token| !token.is_empty()).map(Secret::new);
                let secret = Secret::new(keys.secret_key.clone());
                let keys = KeyPair { id: keys.key_id.clone(), secret, session };
                Ok(Signer::S3 { keys, region: region.clone() })
            }
            Self::Azure { provider, account } => {
                let token = provider.get_credential().await.map_err(|error| failed(&error))?;
                let AzureCredential::BearerToken(token) = &*token else {
                    // Other credentials need variables that are not read.
                    return Err(CredentialsError::Identity { why: "it lends no token".to_owned() });
                };
                let access = Access::Token(Secret::new(token.clone()));
                Ok(Signer::Azure { access, account: account.clone() })
            }
            Self::Google { provider } => {
                let token = provider.get_credential().await.map_err(|error| failed(&error))?;
                Ok(Signer::Token(Secret::new(token.bearer.clone())))
            }
        }
    }
}

/// Each error of the library already contains the messages of its causes.
fn failed(error: &dyn std::error::Error) -> CredentialsError {
    CredentialsError::Identity { why: shown(&error.to_string()) }
}

// === impl Asker ===

impl HttpConnector for Asker {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Asker {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = request.uri().to_string().parse::<Url>();
        let url = url.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let client = self.client(&url).ok_or_else(|| {
            let why = format!("`{}` must be requested over `https://`", url.host_str().unwrap_or_default());
            HttpError::new_boxed(HttpErrorKind::Unknown, why.into())
        })?;
        let (head, body) = request.into_parts();
        let body = body.as_bytes().cloned().unwrap_or_default();
        let question = client.request(head.method, url).headers(head.headers).body(body);
        let answered = async {
            let mut answer = question.send().await.map_err(transport)?;
            let mut words = Vec::new();
            while let Some(piece) = answer.chunk().await.map_err(transport)? {
                if words.len() + piece.len() > MAX_ANSWER {
                    return Err(HttpError::new_boxed(HttpErrorKind::Decode, "the answer is too long".into()));
                }
                words.extend_from_slice(&piece);
            }
            let mut response = HttpResponse::new(words.into());
            *response.status_mut() = answer.status();
            *response.headers_mut() = std::mem::take(answer.headers_mut());
            Ok(response)
        };
        let answered = tokio::time::timeout(EACH_WITHIN, answered).await;
        answered.unwrap_or_else(|late| Err(HttpError::new(HttpErrorKind::Timeout, late)))
    }
}

impl Asker {
    /// Plain HTTP requests bypass every proxy, because a proxy would see the token.
    fn client(&self, url: &Url) -> Option<&Client> {
        match url.scheme() {
            "https" => Some(&self.0.abroad),
            "http" if is_near(url.host_str()?) => Some(&self.0.near),
            _ => None,
        }
    }
}

/// Returns whether the host is this machine, or an address that clouds reserve on each machine.
fn is_near(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    match address {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_link_local(),
        // Amazon uses `fd00:ec2::/32`.
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.segments()[..2] == [0xfd00, 0xec2],
        Err(_) => ["localhost", "metadata.google.internal"].contains(&host),
    }
}

/// A URL may contain the token.
fn transport(error: reqwest::Error) -> HttpError {
    let kind = match () {
        () if error.is_connect() => HttpErrorKind::Connect,
        () if error.is_timeout() => HttpErrorKind::Timeout,
        () => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::mpsc::{self, Receiver};
    use std::time::{SystemTime, UNIX_EPOCH};

    use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use landfall_testkit::{ObjectServer, ObjectStore, have, serve_http};
    use serde_json::json;

    use super::*;
    use crate::objects::{Bucket, Credentials, ObjectsError, Source};

    /// A received request: its first line, its headers, and its body.
    type Asked = String;

    /// A local identity endpoint: answers by the beginning of the request, and reports each request.
    fn lender(answers: Vec<(&'static str, String)>) -> (String, Receiver<Asked>) {
        let (tell, heard) = mpsc::channel();
        let origin = serve_http(move |request| {
            let body = String::from_utf8(request.body.clone()).unwrap();
            // A test that has ended does not listen any more.
            let _ = tell.send(format!("{}\n\n{body}", request.head.join("\n")));
            let answer = answers.iter().find(|(beginning, _)| request.line().starts_with(beginning));
            answer.map_or((404, String::new()), |(_, answer)| (200, answer.clone()))
        });
        (origin.unwrap(), heard)
    }

    /// Opens a bucket whose credentials come only from the environment.
    fn open(store: &ObjectStore, environment: &HashMap<&str, String>) -> Bucket {
        let location = store.location("lent").parse().unwrap();
        let told = |name: &str| environment.get(name).cloned();
        Bucket::open_in(location, Credentials::Cloud, Some(&store.authority()), told).unwrap()
    }

    async fn is_let_in(bucket: &Bucket) {
        bucket.put("n1/a", "text/plain", Source::Bytes(b"{}")).await.unwrap();
        assert_eq!(bucket.get("n1/a", 10).await.unwrap().unwrap(), b"{}");
        assert_eq!(bucket.list("n1/", 10).await.unwrap().len(), 1);
        bucket.delete("n1/a").await.unwrap();
    }

    /// The three identity mechanisms of Amazon, all at this endpoint, each with its number of requests.
    fn ways(origin: &str, token: &str) -> [(HashMap<&'static str, String>, usize, &'static str); 3] {
        let (origin, token) = (origin.to_owned(), token.to_owned());
        let web = HashMap::from([
            ("AWS_WEB_IDENTITY_TOKEN_FILE", token.clone()),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/fleet".to_owned()),
            ("AWS_ENDPOINT_URL_STS", origin.clone()),
            // Keys of another program.
            ("AWS_ACCESS_KEY_ID", "nobody".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "nothing".to_owned()),
        ]);
        let pod = HashMap::from([
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{origin}/pod")),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token),
        ]);
        let machine = HashMap::from([("AWS_METADATA_ENDPOINT", origin)]);
        [
            (web, 1, "WebIdentityToken=who-i-am"),
            (pod, 1, "authorization: who-i-am"),
            (machine, 3, "x-aws-ec2-metadata-token: right-to-ask"),
        ]
    }

    /// The store knows the keys, but no session: it rejects requests with one, after it has read it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_role_of_a_pod_or_a_machine_lets_in() {
        if !have(ObjectServer::Versitygw.needs()) {
            return;
        }
        let store = ObjectServer::Versitygw.start().unwrap();
        let keys = KeyPair::read(&store.credentials()).unwrap();
        let (id, secret) = (keys.id, keys.secret.expose().clone());
        let until = "2099-01-01T00:00:00Z";
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "who-i-am").unwrap();
        for session in ["", "lent"] {
            let role = format!(
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
                 <SessionToken>{session}</SessionToken><SecretAccessKey>{secret}</SecretAccessKey>\
                 <Expiration>{until}</Expiration><AccessKeyId>{id}</AccessKeyId>\
                 </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
            );
            let json =
                json!({"AccessKeyId": id, "SecretAccessKey": secret, "Token": session, "Expiration": until});
            let (origin, heard) = lender(vec![
                ("POST /?Action=AssumeRoleWithWebIdentity", role),
                ("GET /pod", json.to_string()),
                ("PUT /latest/api/token", "right-to-ask".to_owned()),
                ("GET /latest/meta-data/iam/security-credentials/fleet", json.to_string()),
                ("GET /latest/meta-data/iam/security-credentials/", "fleet".to_owned()),
            ]);
            for (told, questions, shown) in ways(&origin, token.to_str().unwrap()) {
                let bucket = open(&store, &told);
                if session.is_empty() {
                    is_let_in(&bucket).await;
                } else {
                    let refused = bucket.get("n1/a", 10).await.unwrap_err();
                    assert!(
                        matches!(&refused, ObjectsError::Refused(no) if no.code == "InvalidToken"),
                        "{refused}"
                    );
                }
                // The credentials are cached.
                let asked: Vec<Asked> = heard.try_iter().collect();
                assert_eq!(asked.len(), questions, "{asked:?}");
                assert!(asked.iter().any(|asked| asked.contains(shown)), "{asked:?}");
            }
        }
    }

    /// With the variables of Azure's webhook in a pod, and as a machine.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_token_of_entra_lets_in() {
        if !have(ObjectServer::Azurite.needs()) {
            return;
        }
        let store = ObjectServer::start_for_tokens().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let claims = json!({
            "aud": "https://storage.azure.com", "iss": "https://sts.windows.net/1/", "iat": now - 60, "nbf": now - 60, "exp": now + 3600,
        });
        // Azurite does not check the signature.
        let token = format!("{}.{}.{}", part(json!({"alg": "RS256", "typ": "JWT"})), part(claims), "c2ln");
        let answer =
            json!({"access_token": token, "expires_in": 3600, "expires_on": (now + 3600).to_string()})
                .to_string();
        let (origin, heard) = lender(vec![
            ("POST /tenant/oauth2/v2.0/token", answer.clone()),
            ("GET /metadata/identity/oauth2/token?", answer),
        ]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "who-i-am").unwrap();
        let pod = [
            ("AZURE_CLIENT_ID", "client".to_owned()),
            ("AZURE_TENANT_ID", "tenant".to_owned()),
            ("AZURE_FEDERATED_TOKEN_FILE", file.to_str().unwrap().to_owned()),
            ("AZURE_AUTHORITY_HOST", origin.clone()),
        ];
        let machine = [("IDENTITY_ENDPOINT", format!("{origin}/metadata/identity/oauth2/token"))];
        for (told, shown) in [(&pod[..], "client_assertion=who-i-am"), (&machine[..], "metadata: true")] {
            let bucket = open(&store, &told.iter().cloned().collect());
            is_let_in(&bucket).await;
            let asked: Vec<Asked> = heard.try_iter().collect();
            assert!(asked.len() == 1 && asked[0].contains(shown), "{asked:?}");
        }
    }

    /// A service account requests a token with its own key.
    #[tokio::test]
    async fn a_service_account_of_google_has_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("account.json");
        let key = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
        let key = STANDARD.encode(AsDer::<Pkcs8V1Der<'_>>::as_der(&key).unwrap().as_ref());
        let key = format!("-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n");
        let account = json!({
            "type": "service_account", "private_key": key, "private_key_id": "1", "client_email": "fleet@example.com",
        });
        std::fs::write(&file, account.to_string()).unwrap();
        let path = file.to_str().unwrap().to_owned();
        let identity = |scheme: &str| {
            let location = format!("gs://logs?endpoint={scheme}://storage.corp").parse().unwrap();
            let told = |name: &str| (name == OF_GOOGLE).then(|| path.clone());
            Bucket::open_in(location, Credentials::Cloud, None, told).unwrap()
        };
        let signer = identity("https").signer().await.unwrap();
        let Signer::Token(token) = &signer else { panic!("it lends keys") };
        assert_eq!(token.expose().split('.').count(), 3);
        let refused = identity("http").signer().await;
        assert!(matches!(refused, Err(ObjectsError::InTheClear { .. })));
    }

    #[tokio::test]
    async fn who_lends_nothing_is_told_of_without_what_was_shown() {
        let (origin, _heard) = lender(Vec::new());
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "canary").unwrap();
        let ask = async |endpoint: String| {
            let location = "s3://logs".parse().unwrap();
            let told = |name: &str| match name {
                "AWS_WEB_IDENTITY_TOKEN_FILE" => token.to_str().map(str::to_owned),
                "AWS_ROLE_ARN" => Some("arn:aws:iam::1:role/fleet".to_owned()),
                "AWS_ENDPOINT_URL_STS" => Some(endpoint.clone()),
                _ => None,
            };
            let identity = Identity::new(&location, told).unwrap();
            let Err(error) = identity.signer().await else { panic!("nobody lends anything") };
            format!("{error} {error:?}")
        };
        for (endpoint, why) in [
            (origin, "404"),
            ("http://127.0.0.1:1".to_owned(), "error sending request"),
            ("http://sts.corp".to_owned(), "`sts.corp` must be requested over `https://`"),
        ] {
            let said = ask(endpoint).await;
            assert!(said.contains(why) && !said.contains("canary"), "{said}");
        }
    }

    #[test]
    fn only_what_is_near_is_asked_in_the_clear() {
        for near in
            ["127.0.0.1", "[::1]", "localhost", "169.254.169.254", "169.254.170.23", "[fd00:ec2::254]"]
        {
            assert!(is_near(near), "{near}");
        }
        for far in [
            "10.0.0.1",
            "169.253.0.1",
            "[fd00:ec3::254]",
            "[fe80::1]",
            "sts.amazonaws.com",
            "localhost.corp",
            "",
        ] {
            assert!(!is_near(far), "{far}");
        }
    }
}
