/** One machine's capsules by the configuration: image, QEMU, jail, and the host on them. */
import { connectAgent } from "./agent/connection.ts";
import { newCapsuleId } from "./capsules/ids.ts";
import type { CapsuleStore } from "./capsules/store.ts";
import type { Config } from "./config.ts";
import { limitedMemory } from "./host/capacity/host-memory.ts";
import { Readiness } from "./host/capacity/readiness.ts";
import { Paths } from "./host/disk/paths.ts";
import type { Connect } from "./host/guest.ts";
import { LocalHost } from "./host/local-host.ts";
import { openMachine } from "./host/machine.ts";
import { stepWithFault } from "./host/steps.ts";
import type { Log } from "./log.ts";
import { ownMemoryMb } from "./settings.ts";
import { version } from "./version.ts";
import { noJail } from "./vmm/jail/jail.ts";
import { layerMerger } from "./vmm/layer-merge.ts";
import { createDefaults } from "./wire/defaults.ts";
import { CapsuleError } from "./wire/errors.ts";
import type { ServiceState } from "./wire/health.ts";

const defaultOrigin = { kind: "base", name: createDefaults.template } as const;
const defaultShape = { vcpus: createDefaults.vcpus, memoryMb: createDefaults.memory_mb };

export type OpenHost = Awaited<ReturnType<typeof openHost>>;

/** The host, with the base of the default shape prepared. */
export async function openHost(config: Config, log: Log, progress: (step: string) => void) {
  const paths = new Paths(config.dataDir);
  const connect: Connect = (socket, deadlineMs, signal, protocol) =>
    connectAgent(socket, { deadlineMs, signal, protocol, silenceMs: config.silenceMs });
  const { vmm, images, accelerator, jail, missing } = await openMachine({
    paths,
    qemu: config.qemu,
    wanted: config.accelerator,
    probeDeadlineMs: config.probeDeadlineMs,
    cpu: config.cpu,
    jail: config.jail === "off" ? null : { uids: config.jailUids },
    connect,
    progress,
    onProblem: (what, err) => log.error({ err }, what),
  });
  log.info({ accelerator: accelerator.kind, why: accelerator.why }, "accelerator chosen");
  const jailReport = jail?.report() ?? noJail;
  if (jail === undefined) log.error({ jail: jailReport }, "QEMU runs without a jail: do not run untrusted code");
  else log.info({ jail: jailReport }, "jail built");
  const step = stepWithFault(config.crashAt);
  const host = new LocalHost({
    paths,
    images,
    vmm,
    connect,
    mergeLayer: await layerMerger(jail),
    bootMs: config.bootDeadlineMs,
    wakeMs: config.wakeDeadlineMs,
    silenceMs: config.silenceMs,
    concurrentStarts: config.concurrentStarts,
    spareBases: config.spareBases,
    memory: limitedMemory(ownMemoryMb, config.memoryReserveMb, jail),
    missing,
    diskReserveBytes: config.diskReserveMb * 2 ** 20,
    warm: {
      pool: {
        newId: newCapsuleId,
        budgetBytes: config.pool === "off" ? 0 : config.poolMemoryMb * 2 ** 20,
        minimum: { key: { origin: defaultOrigin, shape: defaultShape }, size: config.poolMin },
        onFailure: (error) => log.warn({ err: error }, "a warm capsule could not be made or used"),
      },
      processes: {
        maxCount: config.warmProcesses,
        budgetBytes: config.warmProcessesMemoryMb * 2 ** 20,
        onFailure: (error) => log.warn({ err: error }, "a warm process could not be started or claimed"),
      },
    },
    onDamage: (folder, why) => log.error({ folder, why }, "a folder is damaged, or could not be checked"),
    onSilentBoot: (guest) => log.warn({ guest }, "the guest of a base's boot said nothing until the deadline"),
    step,
  });
  await host.sweep();
  progress(`preparing the ${createDefaults.template} template`);
  await host.prepare(defaultOrigin, defaultShape).catch((error: unknown) => {
    // A full disk is emptied through the API. `/healthz` says meanwhile that nothing can be created.
    if (!(error instanceof CapsuleError && error.code === "no_space")) throw error;
    log.error({ err: error }, `the ${createDefaults.template} template could not be prepared`);
  });
  const readiness = new Readiness([() => host.admission.shortages()]);
  return { host, vmm, accelerator, jail, jailReport, readiness, step };
}

/** The state of the service, for its metrics and its health. */
export function stateOf({ host, accelerator, jailReport }: OpenHost, store: CapsuleStore): () => ServiceState {
  return () => ({
    version,
    accelerator: accelerator.kind,
    accelerator_reason: accelerator.why,
    jail: jailReport,
    pid: process.pid,
    capsules: store.counts(),
    pool: host.pool(),
    warm_processes: host.warmProcesses(),
  });
}
