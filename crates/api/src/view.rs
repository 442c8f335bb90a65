//! A view that has the members of its domain type, under the same names.

/// Declares a view and how it is made. A member is converted by `From`; `as maybe` converts what an `Option` holds, `as each`
/// every element of a collection. Where a view differs from its domain type in more than types, it is written out.
macro_rules! view {
    ($(#[$about:meta])* pub struct $view:ident of $domain:ident {
        $($(#[$of_member:meta])* pub $member:ident: $type:ty $(as $how:ident)?),+ $(,)?
    }) => {
        $(#[$about])*
        pub struct $view {
            $($(#[$of_member])* pub $member: $type),+
        }

        impl From<$domain> for $view {
            fn from(domain: $domain) -> Self {
                // Names them all: a member that the domain gains does not compile until it is shown.
                let $domain { $($member),+ } = domain;
                Self { $($member: shown!($member $(as $how)?)),+ }
            }
        }
    };
}

macro_rules! shown {
    ($member:ident) => {
        $member.into()
    };
    ($member:ident as maybe) => {
        $member.map(Into::into)
    };
    ($member:ident as each) => {
        $member.into_iter().map(Into::into).collect()
    };
}
