use crate::cursor::Cursor;
use crate::damage::Fault;
use crate::field::Field;
use crate::file::{Error, JournalFile, Place};
use crate::source::Source;

/// An entry of a journal file. Its fields are read on request.
pub struct Entry<'a, S> {
    file: &'a mut JournalFile<S>,
    next: usize,
}

// === impl Entry ===

impl<'a, S: Source> Entry<'a, S> {
    pub(crate) fn new(file: &'a mut JournalFile<S>) -> Self {
        Self { file, next: 0 }
    }

    /// Returns its address: sequence number, times, boot.
    pub fn cursor(&self) -> Cursor {
        self.file.cursor()
    }

    /// Returns the next field; unreadable ones are skipped and recorded as damage.
    pub fn next_field(&mut self) -> Result<Option<Field<'_>>, Error> {
        while let Some(offset) = self.file.items().get(self.next).copied() {
            self.next += 1;
            match self.file.load(offset) {
                Ok(place) => return self.view(place),
                Err(fault) => self.file.note_damage(fault).map_err(Error::Read)?,
            }
        }
        Ok(None)
    }

    /// Returns the first field with this name.
    pub fn get(&mut self, name: &str) -> Result<Option<Field<'_>>, Error> {
        self.file.rewind();
        for index in 0..self.file.items().len() {
            let offset = self.file.items()[index];
            let found = self.file.load(offset).and_then(|place| {
                let field = self.file.view(place)?;
                Ok((field.name_bytes() == name.as_bytes()).then_some(place))
            });
            match found {
                Ok(Some(place)) => return self.view(place),
                Ok(None) => {}
                Err(fault) => self.file.note_damage(fault).map_err(Error::Read)?,
            }
        }
        Ok(None)
    }

    /// Appends the entry in export format, byte for byte as `journalctl --output=export` of systemd 252 writes it.
    pub fn write_export(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.file.rewind();
        self.file.write_address(out);
        for index in 0..self.file.items().len() {
            let offset = self.file.items()[index];
            if let Err(fault) = self.file.write_field(offset, out) {
                self.file.note_damage(fault).map_err(Error::Read)?;
            }
        }
        out.push(b'\n');
        Ok(())
    }

    fn view(&mut self, place: Place) -> Result<Option<Field<'_>>, Error> {
        match self.file.view(place) {
            Ok(field) => Ok(Some(field)),
            Err(Fault::Read(error)) => Err(Error::Read(error)),
            // The entry was readable before: its file was truncated meanwhile.
            Err(Fault::Damaged(_)) => Ok(None),
        }
    }
}

impl<S> std::fmt::Debug for Entry<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("file", &self.file).finish_non_exhaustive()
    }
}
