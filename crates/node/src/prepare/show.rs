//! Decisions as text.

use std::fmt::{Display, Write as _};

use super::decision::{Action, Content, Decision, Fetched, Inputs, Origin, PassedOver, Resolved, Signature};
use super::skew::Skew;

/// Formats a decision: the inputs with their origins, the conclusions, the planned actions.
pub fn text(decision: &Decision) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(decision, &mut out);
    out
}

/// Formats the inputs, when no decision was possible.
pub fn inputs(inputs: &Inputs) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_inputs(inputs, &mut out);
    out
}

/// Formats the final sources of images.
pub fn fetched(fetched: &[Fetched]) -> String {
    let mut out = String::new();
    for image in fetched {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "Fetched           {}\n    from {}", image.path.display(), image.url);
        let _ = passed_over(&mut out, &image.passed_over);
    }
    out
}

fn write_inputs(inputs: &Inputs, out: &mut String) -> std::fmt::Result {
    resolved(out, "Cluster version", &inputs.cluster_version, &inputs.cluster_version.value)?;
    for server in &inputs.api_servers {
        match (&server.version, &server.error) {
            (Some(version), _) => writeln!(out, "    API server {} is {version}", server.address)?,
            (None, Some(error)) => writeln!(out, "    API server {}: {error}", server.address)?,
            (None, None) => {}
        }
    }
    let os = &inputs.current_os.value;
    resolved(
        out,
        "Operating system",
        &inputs.current_os,
        &format!("{} {} ({})", os.id, os.version, os.board),
    )?;
    let next = inputs.next_os.value.as_ref();
    let next = next.map_or_else(|| "the same operating system".to_owned(), ToString::to_string);
    resolved(out, "Next boot", &inputs.next_os, &next)?;
    if let Some(mappings) = &inputs.runtime_mappings {
        let wanted: Vec<String> = mappings
            .value
            .iter()
            .map(|wanted| format!("{} {}", wanted.name, wanted.versions.join(" or ")))
            .collect();
        resolved(out, "Wanted", mappings, &wanted.join(", "))?;
    }
    for index in &inputs.indexes {
        writeln!(out, "List of images    {}", index.url)?;
        passed_over(out, &index.passed_over)?;
        match &index.signature {
            Signature::Verified { fingerprints } => {
                writeln!(out, "    signed by {}", fingerprints.join(", "))?;
            }
            Signature::NotVerified => writeln!(out, "    SIGNATURE NOT VERIFIED")?,
        }
    }
    Ok(())
}

fn write(decision: &Decision, out: &mut String) -> std::fmt::Result {
    write_inputs(&decision.inputs, out)?;
    writeln!(out)?;
    writeln!(out, "Back end          {}", decision.backend)?;
    for runtime in &decision.runtimes {
        let chosen = runtime.chosen.as_deref().unwrap_or("as it is");
        writeln!(out, "Runtime           {} {chosen}: {}", runtime.name, runtime.reason)?;
    }
    let skew = match &decision.skew {
        Skew::Within => "within the version-skew policy".to_owned(),
        Skew::Unknown => "no API server could be queried about the version-skew policy".to_owned(),
        Skew::Allowed { reason } => format!("OUTSIDE THE VERSION-SKEW POLICY: {reason}"),
    };
    writeln!(out, "Kubelet           {}: {skew}", decision.kubelet)?;
    writeln!(out)?;
    for artefact in &decision.artefacts {
        let path = artefact.path.display();
        match &artefact.action {
            Action::ShipsWithSystem => {
                writeln!(out, "Nothing to do     {path} comes with the operating system")?;
            }
            Action::Present => writeln!(out, "Nothing to do     {path} is there")?,
            Action::Copy { from } => writeln!(out, "Copy              {} to {path}", from.display())?,
            Action::Fetch { urls } => {
                writeln!(out, "Fetch             {}", urls.join("\n    or "))?;
                writeln!(out, "    to {path}, {}", artefact.digest)?;
            }
        }
    }
    for file in decision.files.iter().chain(&decision.reboot.files) {
        match &file.content {
            Content::Text { .. } => writeln!(out, "Write             {}: {}", file.path.display(), file.why)?,
            Content::Link { to } => {
                writeln!(out, "Link              {} to {}: {}", file.path.display(), to.display(), file.why)?;
            }
        }
    }
    if decision.reboot.needed {
        writeln!(out, "Reboot            {}", decision.reboot.because.join("; "))?;
    } else {
        writeln!(out, "No reboot")?;
    }
    if let Some(env) = &decision.kubelet_env {
        writeln!(out, "Write, last       {}: {}", env.path.display(), env.why)?;
    }
    for note in &decision.notes {
        writeln!(out, "Note              {note}")?;
    }
    Ok(())
}

fn resolved<T>(
    out: &mut String,
    title: &str,
    resolved: &Resolved<T>,
    value: &dyn Display,
) -> std::fmt::Result {
    match &resolved.origin {
        Origin::Assumed => writeln!(out, "{title:<17} {value}, assumed")?,
        origin => writeln!(out, "{title:<17} {value}, from {origin}")?,
    }
    passed_over(out, &resolved.passed_over)
}

fn passed_over(out: &mut String, passed_over: &[PassedOver]) -> std::fmt::Result {
    for PassedOver { origin, reason } in passed_over {
        match origin {
            // The reason contains the location already.
            Origin::Url { .. } => writeln!(out, "    request failed: {reason}")?,
            origin => writeln!(out, "    not from {origin}: {reason}")?,
        }
    }
    Ok(())
}
