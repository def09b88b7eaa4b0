use proptest::collection::vec;
use proptest::prelude::*;

use super::matrix::runtime;
use super::world::{Crash, Kind, Machine};
use crate::OnFailure;

/// Boots without progress end a run, so the number of power failures in these tests is limited.
const MAX_POWER_CUTS: usize = 2;

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        8 => prop_oneof![
            Just(Kind::Effect),
            Just(Kind::Twofold),
            Just(Kind::Flaky),
            Just(Kind::File),
            Just(Kind::Satisfied),
            Just(Kind::Reboot),
            Just(Kind::Waits),
            Just(Kind::WaitsAfter),
        ],
        1 => Just(Kind::Fails),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Any steps, any number of consecutive crashes, also during recovery from the previous one.
    #[test]
    fn any_run_survives_any_crashes(
        kinds in vec(kind(), 1..6),
        roll_back: bool,
        cuts in vec((0.0..1.0f64, any::<prop::sample::Index>()), 0..5),
    ) {
        let runtime = runtime();
        let on_failure = if roll_back { OnFailure::RollBack } else { OnFailure::Stop };
        let calm = Machine::new(&kinds, on_failure);
        let end = calm.run(&runtime, None);
        let machine = Machine::new(&kinds, on_failure);
        let mut power_cuts = 0;
        for (place, which) in cuts {
            let done = machine.operations().len();
            // Early interruptions are more likely: they hit the recovery from the previous one.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a few hundred")]
            let ahead = (place * place * calm.operations().len() as f64) as usize;
            if let Some(early) = machine.run(&runtime, Some(done + ahead)) {
                prop_assert_eq!(Some(early), end);
                return Ok(());
            }
            let crashes = machine.crashes();
            let crash = match crashes[which.index(crashes.len())] {
                Crash::PowerCut(_) if power_cuts == MAX_POWER_CUTS => Crash::Kill,
                crash => crash,
            };
            power_cuts += usize::from(matches!(crash, Crash::PowerCut(_)));
            machine.crash(crash);
        }
        prop_assert_eq!(machine.run(&runtime, None), end);
    }
}
