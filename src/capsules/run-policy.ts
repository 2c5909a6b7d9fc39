/** A rule by which the service changes a running capsule without a request, for example the pause of an idle one. */
import type { Guest } from "../host/host.ts";
import type { Capsule } from "./store.ts";

/** No method may throw. */
export interface RunPolicy {
  /** The capsule's processes run. `isAdopted`: they did so already under an earlier daemon. */
  began(capsule: Capsule, isAdopted: boolean): void;
  /** The team has changed its settings. Called between `began` and `ended`. */
  changed(capsule: Capsule): void;
  /** Its run has ended, or a save has begun. Called once or more per run, also where `began` was not. */
  ended(id: string): void;
  /** Its pause or capture has failed, and it runs on. */
  pauseFailed(capsule: Capsule): void;
  /** The server stops: capsules run on, and are not changed any more. */
  close(): void;
}

/** A part of the service that is told of whole runs: a save that fails ends none. No method may throw. */
export interface RunObserver {
  /** The capsule's processes run. `isAdopted`: they did so already under an earlier daemon. */
  began(capsule: Capsule, guest: Guest, isAdopted: boolean): void;
  /** Its run has ended. Called also where `began` was not. */
  ended(id: string): void;
}
