/** Epoch milliseconds as the wire writes them: UTC, milliseconds, Z. */
export function timestamp(epochMs: number): string {
  return new Date(epochMs).toISOString();
}

export function timestampOrNull(epochMs: number | null): string | null {
  return epochMs === null ? null : timestamp(epochMs);
}
