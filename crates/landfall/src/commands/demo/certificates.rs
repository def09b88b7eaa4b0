//! Keys of the demo: one bootstrap CA, and certificates for one purpose each.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::{Context as _, Result};
use landfall_pki::{Authority, KeyedCertificate, Leaf, Purpose};

use super::cast::Cast;

/// Longer than any run of the demo; the certificates are useless afterwards.
const DAYS: u32 = 1;
/// Directory of kubeadm's certificates on the bootstrap machine.
const MACHINE: &str = "boot-0/etc/kubernetes/pki";

/// Creates all of them; returns their number.
pub(super) fn make(cast: &Cast) -> Result<usize> {
    let authority = Authority::new("landfall-demo", DAYS).context("make an authority")?;
    let front_proxy = Authority::new("landfall-demo-front-proxy", DAYS).context("make an authority")?;
    cast.write(&format!("{MACHINE}/ca.crt"), authority.certificate())?;
    cast.write(&format!("{MACHINE}/front-proxy-ca.crt"), front_proxy.certificate())?;
    let names = ["localhost", "127.0.0.1", "kubernetes.default.svc"];
    let certificates = [
        (
            &authority,
            format!("{MACHINE}/apiserver"),
            Leaf::new("kube-apiserver", Purpose::Serve).names(names),
        ),
        (&front_proxy, format!("{MACHINE}/front-proxy-client"), Leaf::new("front-proxy", Purpose::Call)),
        (&authority, "admin".to_owned(), Leaf::new("admin", Purpose::Call).organization("system:masters")),
        (&authority, "tunnel-server".to_owned(), Leaf::new("tunnel-server", Purpose::Serve).names(names)),
        (&authority, "tunnel-agent".to_owned(), Leaf::new("tunnel-agent", Purpose::Call)),
    ];
    for (authority, name, leaf) in &certificates {
        let made = authority.issue(&leaf.clone().days(DAYS)).context("issue a certificate")?;
        put(cast, name, &made)?;
    }
    Ok(certificates.len())
}

fn put(cast: &Cast, name: &str, made: &KeyedCertificate) -> Result<()> {
    cast.write(&format!("{name}.crt"), &made.certificate)?;
    let path = cast.path(&format!("{name}.key"));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.as_mut().map_err(|error| std::io::Error::from(error.kind()));
    let written = file.and_then(|file| std::io::Write::write_all(file, made.key.expose().as_bytes()));
    written.with_context(|| format!("write `{}`", path.display()))
}
