//! Operating system images of an ostree machine and the booted one, like `rpm-ostree status`.
//!
//! Read from files: the daemon may not run, and starting it would change the machine.

use std::fmt::Write as _;
use std::path::{Component, Path};

use super::Source;
use crate::collect::forbidden;
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Sink, shown};

/// Maximum number of deployments. A machine keeps two or three.
const MAX_DEPLOYMENTS: usize = 32;

/// Fields of an origin that name the image source.
const ORIGINS: [&str; 4] = ["container-image-reference", "baserefspec", "refspec", "custom-url"];

pub(super) struct Ostree {
    pub(super) to: String,
}

// === impl Ostree ===

impl Source for Ostree {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        let systems = host.list("/ostree/deploy")?;
        let booted = booted(host);
        let mut text = String::from("Deployments:\n");
        let mut count = 0;
        for system in systems {
            let system = system.to_string_lossy();
            let folder = format!("/ostree/deploy/{system}/deploy");
            for name in host.list(&folder).unwrap_or_default() {
                sink.time_left()?;
                let name = name.to_string_lossy();
                if Path::new(&*name).extension().is_some_and(|end| end == "origin") {
                    continue;
                }
                count += 1;
                if count > MAX_DEPLOYMENTS {
                    continue;
                }
                let origin = forbidden::fact(host, format!("{folder}/{name}.origin")).unwrap_or_default();
                let release =
                    forbidden::fact(host, format!("{folder}/{name}/usr/lib/os-release")).unwrap_or_default();
                let version = field(&release, "OSTREE_VERSION").or_else(|| field(&release, "VERSION"));
                let from = ORIGINS.iter().find_map(|name| field(&origin, name));
                let mark = if booted.as_deref() == Some(&*name) { '●' } else { ' ' };
                let (commit, serial) = name.rsplit_once('.').unwrap_or((&name, "-"));
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{mark} {}", shown(from.unwrap_or("origin unknown")));
                let _ = writeln!(text, "     System: {}", shown(&system));
                let _ = writeln!(text, "    Version: {}", shown(version.unwrap_or("unknown")));
                let _ = writeln!(text, "     Commit: {}", shown(commit));
                let _ = writeln!(text, "     Serial: {}", shown(serial));
            }
        }
        if count > MAX_DEPLOYMENTS {
            let _ = writeln!(text, "and {} more", count - MAX_DEPLOYMENTS);
        }
        if booted.is_none() {
            text += "booted: unknown\n";
        }
        sink.text(&self.to, "/ostree/deploy", &text);
        Ok(())
    }
}

/// Returns the booted deployment: the target of the link on the kernel command line.
fn booted(host: &Host) -> Option<String> {
    let arguments = forbidden::fact(host, "/proc/cmdline")?;
    let link = arguments.split_whitespace().find_map(|word| word.strip_prefix("ostree="))?;
    let file = host.open(format!("{link}/usr/lib/os-release")).ok()?;
    let path = host.real_path(&file).ok()?;
    let mut parts = path.components().skip_while(|part| *part != Component::Normal("deploy".as_ref()));
    // `deploy`, the system, `deploy`, the deployment.
    parts.nth(3).map(|part| part.as_os_str().to_string_lossy().into_owned())
}

fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.trim().trim_matches(['"', '\''])).filter(|value| !value.is_empty())
}
