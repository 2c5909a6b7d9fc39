/**
 * From a VM's description to QEMU's argument vector. Pure: the machine that a saved VM is restored into must be the very
 * same machine, so every device and option stands here, in one place and in one order. Whoever changes what the guest
 * can see (a device, its order, a property) raises `layout`.
 */
import { isRecent } from "./qemu-version.ts";
import type { Machine, VmSpec } from "./vmm.ts";

/** Version of the device line-up below; saved VMs of another layout cannot be restored. */
export const layout = 1;

/**
 * Descriptors that QEMU is started with: two listening sockets, and a third one for a blank that rehearses, or for an older
 * QEMU, which does not, the device state.
 */
export const inheritedFd = { agent: 3, qmp: 4, qtest: 5, state: 5 } as const;

/** What the guest has printed on its console, kept in QEMU: the last 64 KiB and never more. */
export const consoleDevice = "console";
export const consoleBytes = 65_536;

export interface Launch {
  spec: VmSpec;
  /**
   * What the host knows about its processor's time stamp counter. Software emulation hands the host's counter to the guest,
   * which then measures its frequency against an emulated timer: on a busy host that fails, and the kernel hangs or runs
   * with a wrong clock. So the guest is told. Null under KVM, which tells the guest itself.
   */
  tscKhz: number | null;
  /** Wait for a saved VM instead of starting the kernel. */
  isIncoming: boolean;
  /** Size of the disk whose layer is given later; null: the layer is there. */
  placeholderDiskBytes?: number | null;
  /** It will be loaded twice: see warm-qemu.ts. */
  warmsTranslations?: boolean;
}

export const layerName = "layer";

/** The disk as the device sees it. A node of its own, because only such a one tells whether flushing it worked. */
export const disk = { driver: "raw", "node-name": "disk", discard: "unmap", file: layerName };

export const placeholderName = "nothing";

/** The socket through which guest memory is written as a guest writes it, and the object behind it. */
export const qtestName = "qtest";
export const qtestPortName = "qtest-port";
const qtest = [
  ["-chardev", `socket,id=${qtestPortName},fd=${inheritedFd.qtest},server=on,wait=off`],
  ["-object", `qtest,id=${qtestName},chardev=${qtestPortName},log=none`],
].flat();

/** The complete argument vector, without the program's own name. */
export function qemuArgs({
  spec,
  tscKhz,
  isIncoming,
  placeholderDiskBytes: blankDiskBytes = null,
  warmsTranslations: rehearses = false,
}: Launch): string[] {
  const { machine, files } = spec;
  return [
    ["-name", `guest=${quote(processName(spec))},debug-threads=on`],
    ["-no-user-config"],
    ["-nodefaults"],
    ["-display", "none"],
    // The PIC is off because a kernel booted this way never sets it up: its first tick would arrive as a division error.
    ["-machine", "microvm,memory-backend=ram,acpi=on,pic=off,mem-merge=off,dump-guest-core=off,suppress-vmdesc=on"],
    // Without it, QEMU refuses to load what xen-save-devices-state wrote.
    ["-global", "migration.send-configuration=off"],
    ["-accel", machine.accelerator === "kvm" ? "kvm" : "tcg,thread=multi,tb-size=128"],
    ["-cpu", machine.cpu],
    ["-rtc", "base=utc,clock=vm"],
    ["-smp", `cpus=${machine.vcpus},sockets=1,cores=${machine.vcpus},threads=1,maxcpus=${machine.vcpus}`],
    ["-m", `size=${machine.memoryMb}M`],
    ["-object", memoryBackend(spec)],
    // A restored guest has its kernel in memory already, and a guest that resets itself has ended.
    isIncoming
      ? []
      : ["-kernel", files.kernel, "-initrd", files.initrd, "-append", kernelCommandLine(machine.accelerator, tscKhz)],
    ["-chardev", `ringbuf,id=${consoleDevice},size=${consoleBytes}`],
    ["-serial", `chardev:${consoleDevice}`],
    ["-chardev", `socket,id=agent,fd=${inheritedFd.agent},server=on,wait=off`],
    ["-device", "virtio-serial-device,max_ports=2"],
    ["-device", "virtserialport,chardev=agent,name=capsule.agent"],
    blockdevs(files.disk, blankDiskBytes).flatMap((node) => ["-blockdev", JSON.stringify(node)]),
    ["-device", "virtio-blk-device,drive=disk"],
    ["-chardev", `socket,id=qmp,fd=${inheritedFd.qmp},server=on,wait=off`],
    ["-mon", "chardev=qmp,mode=control"],
    rehearses ? qtest : [],
    // A guest that ends leaves QEMU behind, stopped, so that its end can be told from QEMU's.
    ["-action", "reboot=shutdown,shutdown=pause"],
    ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
    isIncoming ? ["-S", "-incoming", "defer"] : [],
  ].flat();
}

/** What an operator's `ps` shows, and what identifies the process: the nonce, between two spaces. */
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

/** Guest memory up to here lies at its own addresses. */
const lowMemoryMb = 2_048;

/** Whether a QEMU with this machine can be loaded a second time: see Blank.canRehearse. */
export function canWarmTranslations({ qemu, accelerator, vcpus, memoryMb }: Machine): boolean {
  return isRecent(qemu) && accelerator === "tcg" && vcpus === 1 && memoryMb <= lowMemoryMb;
}

/** What a kernel is told, but for the clock: a base is made anew when it changes. */
export function kernelOptions(accelerator: Machine["accelerator"]): string {
  // A panic must end the VM at once (panic=-1) and by a reset that QEMU sees (reboot=t, a triple fault).
  // The self-tests of the kernel's cryptography take an eighth of an emulated boot.
  const always = ["console=ttyS0", "quiet", "panic=-1", "reboot=t", "cryptomgr.notests"];
  return [...always, ...unused, ...restless, ...(accelerator === "tcg" ? emulated : [])].join(" ");
}

/**
 * What takes time from every command and is of no use in a capsule: page tables for more than 128 TiB, figures on pressure,
 * security modules that do nothing without a policy.
 */
const unused = ["no5lvl", "psi=0", "lsm=lockdown,landlock,yama"];
/**
 * What wakes a guest that rests: the search for stuck processors, which finds those that their host does not let run, and a
 * thread that makes room for huge pages before anybody asks.
 */
const restless = ["nowatchdog", "sysctl.vm.compaction_proactiveness=0"];
/** Detours that keep a processor from guessing on an attacker's behalf; an emulated one does not run them as written. */
const emulated = ["mitigations=off"];

function kernelCommandLine(accelerator: Machine["accelerator"], tscKhz: number | null): string {
  const clock = tscKhz === null ? [] : ["tsc=reliable", `tsc_early_khz=${tscKhz}`];
  return [kernelOptions(accelerator), ...clock].join(" ");
}

function memoryBackend({ machine, files }: VmSpec): string {
  const readOnly = isRecent(machine.qemu) ? ",readonly=on,rom=off" : "";
  return `memory-backend-file,id=ram,size=${machine.memoryMb}M,mem-path=${quote(files.memory)},share=off${readOnly}`;
}

function blockdevs(path: string, blankDiskBytes: number | null): object[] {
  if (blankDiskBytes === null) return [layer(path), disk];
  return [placeholderDisk(blankDiskBytes), { ...disk, file: placeholderName }];
}

/** What stands in for a layer that is not known yet. */
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

/** QEMU's option syntax separates by commas and takes a doubled one for itself. */
function quote(value: string): string {
  return value.replaceAll(",", ",,");
}
