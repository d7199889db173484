//! The macro that makes the struct, the table and the parser from the list in `table.rs`.

/// Makes the struct, the table and the parser from one list.
macro_rules! options {
    ($(
        $(#[doc = $doc:literal])+
        $field:ident: $type:ty {
            variables: $variables:expr,
            default: $default:expr, $shown:literal,
            help: $help:literal,
        }
    )+) => {
        /// Every setting, read and checked. `docs/options.md` explains each to users.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Options {
            $( $(#[doc = $doc])+ pub $field: Setting<$type>, )+
        }

        /// Every setting, in the order in which they are documented.
        pub static TABLE: &[Entry] = &[$({
            const VARIABLES: &[Variable<$type>] = &$variables;
            const NAMES: &[[Option<&str>; 2]] = &names::<$type, { VARIABLES.len() }>(VARIABLES);
            Entry {
                name: stringify!($field),
                variables: NAMES,
                allowed: VARIABLES[0].allowed(),
                example: VARIABLES[0].example(),
                default: $shown,
                help: $help,
            }
        }),+];

        impl Options {
            /// Reads every setting through `lookup`, which returns a variable's value.
            ///
            /// # Errors
            /// If variables that count have invalid values: one error for each of them.
            pub fn parse(
                lookup: impl Fn(&str) -> Option<OsString>,
            ) -> Result<(Options, Vec<Warning>), OptionErrors> {
                let mut reader = Reader { lookup, errors: Vec::new(), warnings: Vec::new() };
                let options = Options { $( $field: reader.read::<$type>(&$variables, $default), )+ };
                if reader.errors.is_empty() {
                    Ok((options, reader.warnings))
                } else {
                    Err(OptionErrors(reader.errors))
                }
            }

            /// Returns every setting with its current value, in the order of [`TABLE`].
            pub fn rows(&self) -> Vec<Row> {
                let shown = [$( (self.$field.value.show(), self.$field.source) ),+];
                let rows = TABLE.iter().zip(shown);
                rows.map(|(entry, (value, source))| Row { entry, value, source }).collect()
            }
        }
    };
}
