/**
 * QEMU's argument vector for a VM, as a pure function. A saved VM can only be restored into the same machine, so all devices
 * and options are in this file and in parts.ts, in a fixed order. A change that the guest can see (a device, its order, a
 * property) requires another part, or another version of one.
 */

import { qmpSocketName, qtestSocketName } from "../vm-folder.ts";
import type { Machine, VmSpec } from "../vmm.ts";
import { type Parts, partsOf, parts as releasedParts } from "./parts.ts";
import { isRecent } from "./qemu-version.ts";

/** Number of the first inherited descriptor. */
const firstFd = 3;

/** QEMU's ring buffer with the last 64 KiB of the guest's console output. */
export const consoleDevice = "console";
export const consoleBytes = 65_536;

export interface Launch {
  spec: VmSpec;
  /**
   * Frequency of the host's time stamp counter, for the guest's kernel. Under software emulation the guest reads the host's
   * counter and would calibrate it against an emulated timer; on a busy host that fails, and the kernel hangs or has a wrong
   * clock. Null under KVM, which reports the frequency itself.
   */
  tscKhz: number | null;
  /** Wait for a saved VM instead of starting the kernel. */
  isIncoming: boolean;
  /** Size of the placeholder disk when the layer is attached later; null: the layer exists. */
  placeholderDiskBytes?: number | null;
  /** With qtest, for a warm process that warms its translations; see warm/warm-qemu.ts. */
  warmsTranslations?: boolean;
  /** Default: those of this release. */
  parts?: Parts;
}

/** Sockets that QEMU listens on, in the order of the descriptors that it inherits. */
export function socketsOf({ spec, warmsTranslations = false, parts = releasedParts }: Launch): string[] {
  const ofParts = partsOf(parts, spec.machine.devices).flatMap(({ sockets }) => sockets);
  return [...ofParts, qmpSocketName, ...(warmsTranslations ? [qtestSocketName] : [])];
}

/** The descriptor after the sockets, in which a QEMU before 8.2 inherits the device state. */
export function stateFdOf(launch: Launch): number {
  return firstFd + socketsOf(launch).length;
}

export const layerName = "layer";

/** The disk as the device sees it. A separate node, because reopening it reports whether a flush failed. */
export const disk = { driver: "raw", "node-name": "disk", discard: "unmap", file: layerName };

export const placeholderName = "nothing";

/** The qtest object, which writes guest memory as the guest's own stores would, and its socket. */
export const qtestName = "qtest";
export const qtestPortName = "qtest-port";

/** The complete argument vector, without the program's own name. */
export function qemuArgs(launch: Launch): string[] {
  const { spec, tscKhz, isIncoming, placeholderDiskBytes = null, parts = releasedParts } = launch;
  const { machine, files } = spec;
  const sockets = socketsOf(launch);
  const fd = (socket: string) => firstFd + sockets.indexOf(socket);
  return [
    ["-name", `guest=${quote(processName(spec))},process=qemu-system-x86,debug-threads=on`],
    ["-no-user-config"],
    ["-nodefaults"],
    ["-display", "none"],
    // The PIC is off because a kernel booted this way never sets it up: its first tick would be a division error.
    ["-machine", "microvm,memory-backend=ram,acpi=on,pic=off,mem-merge=off,dump-guest-core=off,suppress-vmdesc=on"],
    // Otherwise QEMU refuses to load the output of xen-save-devices-state.
    ["-global", "migration.send-configuration=off"],
    ["-accel", machine.accelerator === "kvm" ? "kvm" : "tcg,thread=multi,tb-size=128"],
    ["-cpu", machine.cpu],
    ["-rtc", "base=utc,clock=vm"],
    ["-smp", `cpus=${machine.vcpus},sockets=1,cores=${machine.vcpus},threads=1,maxcpus=${machine.vcpus}`],
    ["-m", `size=${machine.memoryMb}M`],
    ["-object", memoryBackend(spec)],
    // A restored guest has its kernel in memory, and a guest that resets itself counts as ended.
    isIncoming
      ? []
      : ["-kernel", files.kernel, "-initrd", files.initrd, "-append", kernelCommandLine(machine.accelerator, tscKhz)],
    ["-chardev", `ringbuf,id=${consoleDevice},size=${consoleBytes}`],
    ["-serial", `chardev:${consoleDevice}`],
    partsOf(parts, machine.devices).flatMap((part) => part.args(machine.devices, fd)),
    blockdevs(files.disk, placeholderDiskBytes).flatMap((node) => ["-blockdev", JSON.stringify(node)]),
    ["-device", "virtio-blk-device,drive=disk"],
    ["-chardev", `socket,id=qmp,fd=${fd(qmpSocketName)},server=on,wait=off`],
    ["-mon", "chardev=qmp,mode=control"],
    launch.warmsTranslations ? qtest(fd(qtestSocketName)) : [],
    // When the guest ends, QEMU stops and stays, so that the guest's end and QEMU's can be distinguished.
    ["-action", "reboot=shutdown,shutdown=pause"],
    ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
    isIncoming ? ["-S", "-incoming", "defer"] : [],
  ].flat();
}

function qtest(fd: number): string[] {
  return [
    ...["-chardev", `socket,id=${qtestPortName},fd=${fd},server=on,wait=off`],
    ...["-object", `qtest,id=${qtestName},chardev=${qtestPortName},log=none`],
  ];
}

/** For an operator's `ps`. The nonce between two spaces identifies the process. */
export function processName(spec: Pick<VmSpec, "name" | "nonce" | "files">): string {
  return `${spec.name} nonce=${spec.nonce} dir=${spec.files.dir}`;
}

/** True when these arguments belong to the VM with this nonce. */
export function namesVm(args: readonly string[], nonce: string): boolean {
  const at = args.indexOf("-name");
  return at !== -1 && args[at + 1]?.includes(` nonce=${nonce} `) === true;
}

/** The nonce of the VM that these arguments belong to, if its folder lies below `folder`; else null. */
export function nonceBelow(args: readonly string[], folder: string): string | null {
  const at = args.indexOf("-name");
  const name = at === -1 ? undefined : args[at + 1];
  const match = name === undefined ? null : / nonce=([0-9a-f]{32}) dir=/.exec(name);
  if (name === undefined || match === null) return null;
  const dir = name.slice(match.index + match[0].length);
  return dir.startsWith(`${escape(folder)}/`) ? match[1]! : null;
}

/** Guest memory below this limit has equal offsets and physical addresses. */
const lowMemoryMb = 2_048;

/** Whether a warm process with this machine can warm its translations; see WarmProcess.canWarmTranslations. */
export function canWarmTranslations({ qemu, accelerator, vcpus, memoryMb }: Machine): boolean {
  return isRecent(qemu) && accelerator === "tcg" && vcpus === 1 && memoryMb <= lowMemoryMb;
}

/** The kernel's options except for the clock. Bases are made anew when they change. */
export function kernelOptions(accelerator: Machine["accelerator"]): string {
  // A panic must end the VM at once (panic=-1) and by a reset that QEMU sees (reboot=t, a triple fault).
  // The self-tests of the kernel's cryptography take an eighth of an emulated boot.
  const always = ["console=ttyS0", "quiet", "panic=-1", "reboot=t", "cryptomgr.notests"];
  return [...always, ...unused, ...periodic, ...(accelerator === "tcg" ? emulated : [])].join(" ");
}

/** Features that cost time in every command and are not used: 5-level page tables, PSI, security modules without a policy. */
const unused = ["no5lvl", "psi=0", "lsm=lockdown,landlock,yama"];
/** Features that wake an idle guest: the lockup detectors, which also fire when the host is busy, and proactive compaction. */
const periodic = ["nowatchdog", "sysctl.vm.compaction_proactiveness=0"];
/** Mitigations of speculative execution have no effect on an emulated CPU and cost time. */
const emulated = ["mitigations=off"];

function kernelCommandLine(accelerator: Machine["accelerator"], tscKhz: number | null): string {
  const clock = tscKhz === null ? [] : ["tsc=reliable", `tsc_early_khz=${tscKhz}`];
  return [kernelOptions(accelerator), ...clock].join(" ");
}

function memoryBackend({ machine, files }: VmSpec): string {
  const readOnly = isRecent(machine.qemu) ? ",readonly=on,rom=off" : "";
  return `memory-backend-file,id=ram,size=${machine.memoryMb}M,mem-path=${quote(files.memory)},share=off${readOnly}`;
}

function blockdevs(path: string, placeholderDiskBytes: number | null): object[] {
  if (placeholderDiskBytes === null) return [layer(path), disk];
  return [placeholderDisk(placeholderDiskBytes), { ...disk, file: placeholderName }];
}

/** A disk of zeros in place of a layer that is attached later. */
export function placeholderDisk(sizeBytes: number): Record<string, unknown> {
  return { driver: "null-co", "node-name": placeholderName, "read-zeroes": true, size: sizeBytes };
}

/** The disk layer at `path`, as QEMU's node of that name. */
export function layer(path: string): Record<string, unknown> {
  return {
    driver: "qcow2",
    "node-name": layerName,
    discard: "unmap",
    "detect-zeroes": "unmap",
    file: { driver: "file", filename: path, discard: "unmap" },
  };
}

/** QEMU's option syntax separates by commas; a doubled comma stands for one. */
function quote(value: string): string {
  return value.replaceAll(",", ",,");
}
