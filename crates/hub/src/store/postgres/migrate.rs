//! Migration of the tables. Hubs that start concurrently migrate them once.

use deadpool_postgres::Pool;

use super::super::StoreError;
use super::place::Place;
use super::{Tries, Trouble, connection};

/// The migrations from an empty database to the current version; a released migration is never changed.
const STEPS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("later.sql"),
    include_str!("forgotten.sql"),
    include_str!("trust.sql"),
];
/// Advisory lock of the hub that migrates the tables; any number that is otherwise unused in this database.
const CHANGING: i64 = 0x6c61_6e64_6661_6c01;

pub(super) async fn run(pool: &Pool, place: &Place) -> Result<(), StoreError> {
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    let mut tries = Tries::begin();
    loop {
        match migrate(pool).await {
            Ok(found) if found > known => {
                return Err(StoreError::Newer { place: place.shown(), found, known });
            }
            Ok(_) => return Ok(()),
            Err(trouble) if trouble.may_pass() && tries.again().await => {}
            Err(trouble) => {
                return Err(StoreError::Open { place: place.shown(), source: Box::new(trouble) });
            }
        }
    }
}

/// Migrates the tables and returns their version.
async fn migrate(pool: &Pool) -> Result<i64, Trouble> {
    let mut client = connection(pool).await?;
    let transaction = client.transaction().await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&CHANGING]).await?;
    transaction.batch_execute("CREATE TABLE IF NOT EXISTS format (version bigint NOT NULL)").await?;
    let found = transaction.query_opt("SELECT version FROM format", &[]).await?;
    let found: i64 = found.map(|row| row.try_get(0)).transpose()?.unwrap_or(0);
    let missing = usize::try_from(found).ok().and_then(|found| STEPS.get(found..)).unwrap_or_default();
    if missing.is_empty() {
        return Ok(found);
    }
    // Creating an index on a large table takes longer than the timeout of other statements.
    transaction.batch_execute("SET LOCAL statement_timeout = '15min'").await?;
    for step in missing {
        transaction.batch_execute(step).await?;
    }
    let version = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    transaction.batch_execute("DELETE FROM format").await?;
    transaction.execute("INSERT INTO format VALUES ($1)", &[&version]).await?;
    transaction.commit().await?;
    Ok(version)
}

#[cfg(test)]
mod tests {
    use landfall_testkit::{Postgres, have};

    use super::super::super::Store as _;
    use super::super::PostgresStore;
    use super::*;

    #[tokio::test]
    async fn tables_of_an_earlier_version_are_taken_over() {
        if !have(Postgres::NEEDS) {
            return;
        }
        let postgres = Postgres::shared().unwrap();
        let url = postgres.database().unwrap();
        let place = Place::parse(&url).unwrap();
        let pool = super::super::pool(&place, 1, None).unwrap();
        let earlier = connection(&pool).await.unwrap();
        let rest = "CREATE TABLE format (version bigint NOT NULL); INSERT INTO format VALUES (1); \
             INSERT INTO bundles VALUES ('ab', 'n1', 1, 1, 1, false)";
        earlier.batch_execute(&format!("{}{rest}", STEPS[0])).await.unwrap();
        // Twice: a migration runs once.
        for _ in 0..2 {
            let store = PostgresStore::open(&place).await.unwrap();
            assert_eq!(store.bundle("ab".to_owned()).await.unwrap().map(|bundle| bundle.bytes), Some(1));
            assert!(store.loose(jiff::Timestamp::now()).await.unwrap().is_empty());
        }
        let row = earlier.query_one("SELECT version FROM format", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 4);
    }
}
