/**
 * The port that decides which host holds a capsule, for services of several hosts: it is asked before a capsule changes hands, gets a
 * name or uses a team's quotas. A host alone holds all of its capsules (docs/adr/0092).
 */
import type { Captured } from "../host/host.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Capsule } from "./store.ts";

/**
 * Each call is made before the row is changed. undefined: decided at once. A promise that rejects has decided nothing, and its error
 * is the request's: CapsuleError "unavailable" when nobody could decide. A call may be repeated, and then succeeds again.
 */
export interface Ownership {
  /** Throws "unavailable" where no create could be decided. Nothing is set aside for the capsule yet. */
  requireCreates?(): void;
  /**
   * A new capsule, of this host. It has no row yet; where it gets none, `destroy` follows. `answer`: what is kept with it for its
   * request's Idempotency-Key.
   */
  create(row: Capsule, answer: () => KeyedAnswer | undefined): Promise<void> | undefined;
  /** A capsule without a VM is to get one: a resume, or a start from its disk. */
  admitResume(row: Capsule): Promise<void> | undefined;
  destroy(row: Capsule): Promise<void> | undefined;
  /** As `destroy`, of a create that failed: what was kept for its Idempotency-Key goes, too. Default: `destroy`. */
  unmake?(row: Capsule): Promise<void> | undefined;
  /** The files of a template are made, for `capture`: they have to outlive this host first. Default: they stay where they are. */
  keepFiles?(template: Pick<NewTemplate, "storage" | "sizeBytes">, signal: AbortSignal): Promise<void>;
  /** `keepFiles` was called, and there is no such template. */
  dropFiles?(storage: string): Promise<void>;
  /**
   * A running capsule becomes the template, and is destroyed. Rejects with Undecided where that may be decided, or be so later. `answer`: as
   * of `create`.
   */
  capture(row: Capsule, template: NewTemplate, answer: () => KeyedAnswer | undefined): Promise<void> | undefined;
  /** The template that a capsule which has a row here was decided to become. Throws "unavailable". Default: none. */
  captured?(row: Capsule): Promise<DecidedTemplate | undefined>;
  rename(row: Capsule, name: string | null): Promise<void> | undefined;
}

/** Where a capture leads to. */
export interface TemplatePlace {
  storage: string;
  name: string;
  /** Whether the team's template of that name, if there is one, is replaced. */
  overwrites: boolean;
}

/** The steps of a capture behind the making of its files. */
export interface CaptureSteps {
  /** See Ownership.keepFiles. */
  keep?: (captured: Captured, signal: AbortSignal) => Promise<void>;
  /** Makes the template's row and begins the destroy of the capsule, unless one has begun. */
  commit: (captured: Captured) => Promise<unknown>;
}

export interface NewTemplate extends TemplatePlace {
  sizeBytes: number;
  /** Its agent can make its file system larger. */
  canGrow: boolean;
  /** Epoch milliseconds. */
  createdAt: number;
}

export interface DecidedTemplate extends NewTemplate {
  /** When it was deleted or replaced since. */
  retiredAt: number | null;
}

/** A capture whose outcome is not known: VM, files and intent stay as they are, until it is asked for again. */
export class Undecided extends CapsuleError {
  constructor(id: string, cause: unknown) {
    super("unavailable", `whether capsule ${id} was captured is not known yet`, { cause });
    this.name = "Undecided";
  }
}

/** The answer to a request with an Idempotency-Key. */
export interface KeyedAnswer {
  route: string;
  key: string;
  bodyHash: string;
  status: number;
  answer: string;
  keepMs: number;
}

const decided = () => undefined;

/** For a host alone. */
export const singleHost: Ownership = {
  ...{ create: decided, admitResume: decided, destroy: decided, capture: decided, rename: decided },
};
