/**
 * A step: conditions on time, and the question whether a host holds a capsule, use their indexes. PostgreSQL compares each row with a
 * volatile function, 0.7 s for 10⁶ rows; a stable one is the bound of an index. It reads a table from its beginning where it expects a row
 * soon, and a host that is drained holds none.
 */
export const indexedScans = `
ALTER FUNCTION now_ms() STABLE;
ALTER FUNCTION follow_drain(text) SET enable_seqscan = off;
`;
