/** The runs with decisions that the service has not been told of: told in turn, and so many bytes at once. */
import type { NetworkDecision } from "../wire/network.ts";
import type { CapsuleRun } from "./capsule-run.ts";
import { decidedMax, type FromRelay } from "./messages.ts";

/** Bytes of one call of `tell`: a quarter of what the service reads in a second. */
const toldMaxBytes = 1 << 20;

export class UntoldRuns {
  readonly #send: (message: FromRelay) => void;
  /** The longest wait first. */
  readonly #runs = new Set<CapsuleRun>();

  constructor(send: (message: FromRelay) => void) {
    this.#send = send;
  }

  add(run: CapsuleRun): void {
    this.#runs.add(run);
  }

  forget(run: CapsuleRun): void {
    this.#runs.delete(run);
  }

  tellOf(run: CapsuleRun): void {
    if (this.#runs.delete(run)) this.#send({ kind: "decisions", runs: [[run.number, run.takeDecisions()]] });
  }

  /** Beyond 1 MiB the rest waits for the next call. */
  tell(): void {
    let runs: [run: number, decided: NetworkDecision[]][] = [];
    let [count, bytes] = [0, 0];
    for (const run of this.#runs) {
      this.#runs.delete(run);
      const decided = run.takeDecisions();
      if (count + decided.length > decidedMax) {
        this.#send({ kind: "decisions", runs });
        [runs, count] = [[], 0];
      }
      runs.push([run.number, decided]);
      count += decided.length;
      bytes += JSON.stringify(decided).length;
      if (bytes >= toldMaxBytes) break;
    }
    if (runs.length > 0) this.#send({ kind: "decisions", runs });
  }
}
