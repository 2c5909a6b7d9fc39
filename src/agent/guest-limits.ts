/**
 * The limits of the agent inside a guest that clients can meet. The agent's own constants enforce them;
 * guest-limits.test.ts reads those in its source.
 */
export const guestLimits = {
  /** Commands and terminals of a capsule that run at once, each. */
  liveMax: 1_024,
  /** File operations and process listings of a capsule at once. */
  tasksMax: 256,
  /** Ended background processes, and terminals, whose exit is kept. */
  keptExitsMax: 64,
  keptExitsMs: 300_000,
  /** Output of each background process that is kept. */
  keptOutputBytes: 1_048_576,
  /** Output of a terminal kept for the next client. */
  replayBytes: 262_144,
  /** Output that waits for a client of attach or a terminal. */
  lagBytes: 1_048_576,
  /** Input that a terminal's program has not read, of all clients. */
  terminalInputBytes: 4_194_304,
  processesMax: 65_000,
  /** Command lines of a process listing; of further processes only the name is told. */
  processListingBytes: 12_582_912,
} as const;
