/** The parts and bounds of which the Host of this machine is made. */
import type { MergeLayer } from "../vmm/layer-merge.ts";
import type { HostMemory } from "./capacity/host-memory.ts";
import type { ReadinessCheck } from "./capacity/readiness.ts";
import type { Paths } from "./disk/paths.ts";
import type { Connect } from "./guest.ts";
import type { SilentGuest } from "./images/boot.ts";
import type { ImageStore } from "./images/image-store.ts";
import type { Vmms } from "./qemu-builds/vmms.ts";
import type { Step } from "./steps.ts";
import type { WarmSettings } from "./warm/warm-starts.ts";

export interface LocalHostOptions {
  paths: Paths;
  images: ImageStore;
  vmm: Vmms;
  connect: Connect;
  mergeLayer: MergeLayer;
  /** Deadline of a boot, kernel to agent. */
  bootMs: number;
  /** Deadline of an agent's first answer, after a restore and on a connection that is made anew. */
  wakeMs: number;
  /** Longest silence of a guest that runs, and of one that an earlier server has left. */
  silenceMs: number;
  /** How long programs have to end when their capsule is stopped; 10 s by default. */
  stopGraceMs?: number;
  /** How many VMs are started at once. */
  concurrentStarts: number;
  /** How many bases without a capsule are kept. */
  spareBases: number;
  memory: HostMemory;
  /** Files without which no VM starts, as sentences about those that are missing. */
  missing: ReadinessCheck;
  /** Space on disk that only pauses may use. */
  diskReserveBytes: number;
  warm: WarmSettings;
  /** Called for checkpoints that were found damaged in the background. */
  onDamage: (folder: string, why: string) => void;
  /** Called for each boot of a base whose guest says nothing. */
  onSilentBoot: (guest: SilentGuest) => void;
  step: Step;
}
