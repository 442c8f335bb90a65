//! The service's own role and database: the role owns its schema and has no other rights in the
//! cluster. For a superuser, SQL is a shell (`COPY … FROM PROGRAM`), so SQL that the service is
//! tricked into executing must not run as a superuser.

/// Name of the role and of the database.
pub(crate) const NAME: &str = "bakeoff";

/// Statements that single-user mode executes one by one in one database.
pub(crate) struct Script {
    pub(crate) database: &'static str,
    pub(crate) statements: Vec<String>,
}

/// SQL that creates the role. `password` is hexadecimal.
fn role(password: &str) -> String {
    format!(
        "DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{NAME}') THEN CREATE ROLE {NAME}; END IF;
  ALTER ROLE {NAME} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD '{password}';
END $$"
    )
}

/// Scripts for a newly initialised cluster.
pub(crate) fn of_a_new_cluster(password: &str) -> Vec<Script> {
    let statements = vec![
        role(password),
        format!("CREATE DATABASE {NAME} OWNER {NAME}"),
    ];
    vec![Script {
        database: "template1",
        statements,
    }]
}

/// Scripts for a cluster in which a superuser has owned everything, in the database `postgres`.
/// They can be repeated after a partial run.
pub(crate) fn of_an_old_cluster(password: &str) -> Vec<Script> {
    let rename = format!(
        "DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_database WHERE datname = '{NAME}') THEN
    ALTER DATABASE postgres RENAME TO {NAME};
  END IF;
  ALTER DATABASE {NAME} OWNER TO {NAME};
END $$"
    );
    vec![
        Script {
            database: "template1",
            statements: vec![role(password), rename],
        },
        Script {
            database: NAME,
            statements: vec![hand_over()],
        },
    ]
}

/// Hands over everything in schema public; what belongs to a table (its sequences, indexes, row
/// types) goes with it.
fn hand_over() -> String {
    format!(
        "DO $$ DECLARE own record; BEGIN
  FOR own IN
    SELECT 'TABLE' AS kind, c.oid::regclass::text AS name, c.oid FROM pg_class c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                        AND c.relkind = 'S' AND d.deptype IN ('a', 'i'))
    UNION ALL
    SELECT 'ROUTINE', p.oid::regprocedure::text, p.oid FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
    UNION ALL
    SELECT 'TYPE', t.oid::regtype::text, t.oid FROM pg_type t
    WHERE t.typnamespace = 'public'::regnamespace AND t.typtype IN ('e', 'd', 'r')
  LOOP
    IF NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = own.oid AND d.deptype = 'e') THEN
      EXECUTE format('ALTER %s %s OWNER TO {NAME}', own.kind, own.name);
    END IF;
  END LOOP;
END $$"
    )
}
