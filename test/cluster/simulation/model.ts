/** The answers that clients of a schedule got: the hosts have to agree with them, at the step of the answer and at the end. */

export const team = "team-red";

/** Limits of the team, over all hosts. */
export const limits = { capsules: 4, runningVcpus: 2, templates: 2 };

/** A name that was asked for; without an answer it may be given as long as no later one was. */
interface Ask {
  name: string | null;
  began: number;
  /** When it was known that nobody will tell; undefined: it is under way. */
  unknownAt: number | undefined;
}

export class KnownCapsule {
  readonly id: string;
  /** The host that the database named when its create was answered. */
  holder = "";
  /** Commands that would end it, and are under way or had no answer. */
  endings = 0;
  /** Its end was acknowledged. */
  isEnded = false;
  /** The status that was acknowledged last; undefined: it may have any. */
  status: string | undefined;
  /** Changes of its status that are under way, or had no answer. */
  changes = 0;
  /** Changes of its status so far. */
  begun = 0;
  /** The numbers of all writes that were asked for, and of those that were acknowledged. */
  lastWrite = 0;
  readonly written: number[] = [];
  #name: string | null;
  #asks: Ask[] = [];

  constructor(id: string, name: string | null) {
    this.id = id;
    this.#name = name;
  }

  /** It is there, as everybody was told. */
  get isSure(): boolean {
    return !this.isEnded && this.endings === 0;
  }

  get names(): (string | null)[] {
    return [this.#name, ...this.#asks.map(({ name }) => name)];
  }

  askName(name: string | null, step: number): Ask {
    const ask = { name, began: step, unknownAt: undefined };
    this.#asks.push(ask);
    return ask;
  }

  /** A later name is decided after those that nobody asks for any longer. */
  named(ask: Ask): void {
    this.#asks = this.#asks.filter((each) => each !== ask && (each.unknownAt ?? Number.POSITIVE_INFINITY) > ask.began);
    // An ask that is under way may have been decided first.
    for (const other of this.#asks) if (other.unknownAt === undefined) other.began = Math.min(other.began, ask.began);
    if (this.#asks.length > 0) this.#asks.push({ name: this.#name, began: -1, unknownAt: Number.POSITIVE_INFINITY });
    this.#name = ask.name;
  }

  unnamed(ask: Ask, step: number | undefined): void {
    if (step === undefined) this.#asks = this.#asks.filter((each) => each !== ask);
    else ask.unknownAt = step;
  }
}

export interface KnownKey {
  id: string;
  /** The team's name. */
  of: string;
  text: string;
  state: "live" | "ending" | "ended";
  /** Host that has told of its end. */
  endedAt?: string;
}

export class Model {
  readonly capsules = new Map<string, KnownCapsule>();
  readonly keys = new Map<string, KnownKey>();
  /** Capsules by the Idempotency-Key of their creates. */
  readonly answers = new Map<string, string>();
  /** Capsules whose move has come to an end without a host that resumes them. */
  readonly leftPaused = new Set<string>();
  /** Held capsules whose last resume was decided without the database. */
  readonly unadmitted = new Set<string>();

  /** Its guest has ended by itself, or with its machine. An answer that is on its way may tell of the status before. */
  lost(id: string): void {
    const capsule = this.capsules.get(id);
    if (capsule === undefined) return;
    capsule.status = undefined;
    capsule.begun += 1;
  }

  /** Changes of keys in the forgotten time are lost: each may be accepted or not. */
  forgetKeys(): void {
    for (const key of this.keys.values()) {
      key.state = "ending";
      delete key.endedAt;
    }
  }

  sure(): KnownCapsule[] {
    return [...this.capsules.values()].filter(({ isSure }) => isSure);
  }
}
