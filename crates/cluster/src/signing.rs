use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{ListParams, PostParams};

use crate::{Cluster, Error};

/// Requests per pass; the rest is handled in later passes.
const MAX_REQUESTS: u32 = 1000;

/// A pending CertificateSigningRequest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningRequest {
    pub name: String,
    pub signer: String,
    /// The requesting user, as authenticated by the API server.
    pub user: String,
    pub groups: Vec<String>,
    /// PKCS #10 (PEM).
    pub request: Vec<u8>,
    pub usages: Vec<String>,
    pub created: Timestamp,
}

impl Cluster {
    /// Returns the pending requests to one signer.
    pub async fn open_signing_requests(&self, signer: &str) -> Result<Vec<SigningRequest>, Error> {
        let requests: Api<CertificateSigningRequest> = Api::all(self.client());
        let fields = format!("spec.signerName={signer}");
        let parameters = ListParams::default().fields(&fields).limit(MAX_REQUESTS);
        let found = self.ask(|| format!("list requests to {signer}"), requests.list(&parameters)).await?;
        Ok(found.items.into_iter().filter_map(open).collect())
    }

    /// Approves a request. One that was deleted or decided meanwhile is left unchanged.
    pub async fn approve(&self, name: &str, reason: &str, message: &str) -> Result<(), Error> {
        let requests: Api<CertificateSigningRequest> = Api::all(self.client());
        let asked = || format!("read request {name}");
        let Some(mut object) = self.ask(asked, requests.get_opt(name)).await? else { return Ok(()) };
        let status = object.status.get_or_insert_with(CertificateSigningRequestStatus::default);
        let conditions = status.conditions.get_or_insert_default();
        if !conditions.is_empty() {
            return Ok(());
        }
        conditions.push(CertificateSigningRequestCondition {
            type_: "Approved".to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_update_time: Some(Time(Timestamp::now())),
            last_transition_time: None,
        });
        let parameters = PostParams::default();
        let asked = || format!("approve request {name}");
        let approved = requests.replace_subresource("approval", name, &parameters, &object);
        self.ask(asked, approved).await.map(drop)
    }
}

fn open(object: CertificateSigningRequest) -> Option<SigningRequest> {
    let status = object.status.unwrap_or_default();
    if status.certificate.is_some() || status.conditions.is_some_and(|conditions| !conditions.is_empty()) {
        return None;
    }
    Some(SigningRequest {
        name: object.metadata.name?,
        signer: object.spec.signer_name,
        user: object.spec.username.unwrap_or_default(),
        groups: object.spec.groups.unwrap_or_default(),
        request: object.spec.request.0,
        usages: object.spec.usages.unwrap_or_default(),
        created: object.metadata.creation_timestamp?.0,
    })
}
