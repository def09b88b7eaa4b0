//! Files and directories.

use std::fs::{self, File, FileType};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use landfall_model::chain;

use super::opener::{OpenError, Opener};
use super::{ReadError, Reason};

/// Limits for a log directory: more is a mistake or an attack. The excess is reported.
const MAX_DEPTH: usize = 32;
const MAX_FILES: usize = 20_000;

pub(super) fn read(opener: &mut Opener<'_, '_>, path: &Path) -> Result<(), ReadError> {
    let failed = |error| ReadError::Open { path: path.to_owned(), source: Reason(error) };
    let kind = fs::metadata(path).map_err(|error| failed(OpenError::Read(error)))?.file_type();
    if kind.is_dir() {
        // A directory that cannot be listed must not look empty.
        fs::read_dir(path).map_err(|error| failed(OpenError::Read(error)))?;
        read_folder(opener, path);
        return Ok(());
    }
    // `<(journalctl …)` is a named pipe. A socket or a device cannot contain a log.
    if !kind.is_file() && !kind.is_fifo() {
        return Err(ReadError::Special { path: path.to_owned(), kind: kind_name(kind) });
    }
    let name = path.display().to_string();
    let mut file = File::open(path).map_err(|error| failed(OpenError::Read(error)))?;
    if kind.is_fifo() { opener.given(&name, &mut file) } else { opener.file(&name, file) }.map_err(failed)
}

fn read_folder(opener: &mut Opener<'_, '_>, folder: &Path) {
    let mut files = Vec::new();
    let mut failures = Vec::new();
    list(folder, 0, &mut files, &mut failures);
    files.sort_unstable();
    for file in &files {
        // Includes the directory as given: two directories may contain files with the same name.
        let name = file.display().to_string();
        let result = File::open(file).map_err(OpenError::Read).and_then(|file| opener.file(&name, file));
        if let Err(error) = result {
            opener.case.fail_source(&name, chain(&error).to_string());
            opener.outcome.first_failure.get_or_insert(error);
        }
    }
    for (path, error) in failures {
        opener.case.fail_source(&path.display().to_string(), error);
    }
}

/// Lists regular files. Links are not followed: in a log directory they lead to listed files, or outside.
fn list(folder: &Path, depth: usize, files: &mut Vec<PathBuf>, failures: &mut Vec<(PathBuf, String)>) {
    if depth > MAX_DEPTH {
        failures.push((folder.to_owned(), format!("folders are nested more than {MAX_DEPTH} deep")));
        return;
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            failures.push((folder.to_owned(), error.to_string()));
            return;
        }
    };
    for entry in entries {
        let found = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
        match found {
            Ok((path, kind)) if kind.is_dir() => list(&path, depth + 1, files, failures),
            Ok((path, kind)) if kind.is_file() => {
                if files.len() >= MAX_FILES {
                    failures.push((path, format!("more than {MAX_FILES} files; the rest is not read")));
                    return;
                }
                files.push(path);
            }
            Ok(_) => {}
            Err(error) => failures.push((folder.to_owned(), error.to_string())),
        }
    }
}

fn kind_name(kind: FileType) -> &'static str {
    if kind.is_socket() {
        "a socket"
    } else if kind.is_block_device() || kind.is_char_device() {
        "a device"
    } else {
        "something else"
    }
}
