//! Kubeconfigs, merged as kubectl does. They are read as values first and given their types then: a reader of YAML for
//! each of these many types would be a sixtieth of the program.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use kube::config::{Kubeconfig, KubeconfigError};
use serde::de::Error as _;
use serde_json::Value;

/// Where a kubeconfig names files: the list, the entry's part, its field.
const FILES: [(&str, &str, &str); 4] = [
    ("clusters", "cluster", "certificate-authority"),
    ("users", "user", "client-certificate"),
    ("users", "user", "client-key"),
    ("users", "user", "tokenFile"),
];

pub(crate) fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let unreadable = |source| KubeconfigError::ReadConfig(source, path.to_owned());
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let wrong = |error| KubeconfigError::Parse(Box::new(error));
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(wrong)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    documents.into_iter().filter(|document| !document.is_null()).try_fold(
        Kubeconfig::default(),
        |merged, mut document| {
            start_at(&mut document, folder);
            let next = serde_json::from_value(document);
            merged.merge(next.map_err(|error| wrong(serde_saphyr::Error::custom(error)))?)
        },
    )
}

/// Of `KUBECONFIG`, or else `~/.kube/config`.
pub(crate) fn of_kubectl() -> Result<Kubeconfig, KubeconfigError> {
    let named = env::var_os("KUBECONFIG").unwrap_or_default();
    let mut paths: Vec<PathBuf> =
        env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if paths.is_empty() {
        paths.push(env::home_dir().ok_or(KubeconfigError::FindPath)?.join(".kube/config"));
    }
    paths.iter().try_fold(Kubeconfig::default(), |merged, path| merged.merge(read(path)?))
}

/// Files without a leading `/` are meant from where the kubeconfig lies; a plugin's command too, unless it is a bare name.
fn start_at(document: &mut Value, folder: &Path) {
    let settle = |value: Option<&mut Value>| {
        if let Some(Value::String(file)) = value
            && !file.is_empty()
            && let Some(path) = folder.join(&*file).to_str()
        {
            path.clone_into(file);
        }
    };
    for (list, part, field) in FILES {
        for entry in document.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            settle(entry.get_mut(part).and_then(|part| part.get_mut(field)));
        }
    }
    for entry in document.get_mut("users").and_then(Value::as_array_mut).into_iter().flatten() {
        let command = entry.pointer_mut("/user/exec/command");
        settle(command.filter(|command| command.as_str().is_some_and(|command| command.contains('/'))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_from_where_the_kubeconfig_lies() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(
            &path,
            "clusters:\n- name: a\n  cluster: {server: 'https://a:6443', certificate-authority: ca.crt}\n\
             users:\n- name: u\n  user: {client-certificate: /etc/u.crt, client-key: keys/u.key, tokenFile: t,\n\
             \x20   exec: {command: aws}}\n- name: v\n  user: {exec: {command: bin/login}}\n\
             contexts: null\n---\ncurrent-context: c\nclusters:\n- name: a\n  cluster: {server: 'https://b:6443'}\n---\n",
        )
        .unwrap();
        let read = read(&path).unwrap();
        let here = |name: &str| Some(folder.path().join(name).display().to_string());
        assert_eq!(read.clusters.len(), 1, "the first of a name wins");
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://a:6443"));
        assert_eq!(cluster.certificate_authority, here("ca.crt"));
        let users: Vec<_> = read.auth_infos.iter().map(|user| user.auth_info.as_ref().unwrap()).collect();
        assert_eq!(users[0].client_certificate.as_deref(), Some("/etc/u.crt"));
        assert_eq!(
            (users[0].client_key.clone(), users[0].token_file.clone()),
            (here("keys/u.key"), here("t"))
        );
        let commands: Vec<_> = users.iter().map(|user| user.exec.as_ref().unwrap().command.clone()).collect();
        assert_eq!(commands, [Some("aws".to_owned()), here("bin/login")]);
        assert_eq!(read.current_context.as_deref(), Some("c"));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        for (text, told) in [("clusters: [", ""), ("clusters: 7", "invalid type"), ("- a\n", "invalid type")]
        {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err();
            assert!(matches!(error, KubeconfigError::Parse(_)), "{text}: {error}");
            assert!(error.to_string().contains(told), "{text}: {error}");
        }
        fs::write(&path, "").unwrap();
        assert!(read(&path).unwrap().current_context.is_none());
        assert!(matches!(read(&folder.path().join("none")), Err(KubeconfigError::ReadConfig(..))));
    }
}
