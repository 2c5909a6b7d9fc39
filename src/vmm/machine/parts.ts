/**
 * The parts of a VM that differ between releases, by name and version. A machine's `devices` lists those of its VM: a saved VM is
 * restored with the parts that it was saved with, and new machines get the newest list. A part that a release has built is never
 * changed and never removed, because saved VMs have it.
 */
import { agentSocketName, networkSocketName } from "../vm-folder.ts";

export interface Part {
  /** Sockets in the VM's folder that QEMU listens on for this part. */
  sockets: readonly string[];
  /**
   * QEMU's arguments. `devices` are all parts of the VM, since a port of a later part takes a place in the device of an earlier
   * one. `fd` is the descriptor of one of the sockets.
   */
  args(devices: readonly string[], fd: (socket: string) => number): string[];
}

export interface Parts {
  /** The parts of new machines, in their order on QEMU's command line. */
  newest: readonly string[];
  known: ReadonlyMap<string, Part>;
}

const network = "net:1";

export const parts: Parts = {
  newest: ["ports:1", "net:1"],
  known: new Map([
    [
      "ports:1", // the serial device, with the agent's port
      {
        sockets: [agentSocketName],
        args: (devices, fd) => [
          ...["-chardev", `socket,id=agent,fd=${fd(agentSocketName)},server=on,wait=off`],
          ...["-device", `virtio-serial-device,max_ports=${devices.includes(network) ? 3 : 2}`],
          ...["-device", "virtserialport,chardev=agent,name=capsule.agent"],
        ],
      },
    ],
    [
      network, // the gateway's port, on the serial device of ports:1
      {
        sockets: [networkSocketName],
        args: (_devices, fd) => [
          ...["-chardev", `socket,id=net,fd=${fd(networkSocketName)},server=on,wait=off`],
          ...["-device", "virtserialport,chardev=net,name=capsule.net"],
        ],
      },
    ],
  ]),
};

/** Whether a VM with these parts can be built. */
export function areKnown({ known }: Parts, devices: readonly string[]): boolean {
  return devices.every((name) => known.has(name));
}

/** The parts of a VM. Throws for an unknown one: requireSameMachine has refused it. */
export function partsOf({ known }: Parts, devices: readonly string[]): Part[] {
  return devices.map((name) => {
    const part = known.get(name);
    if (part === undefined) throw new Error(`there is no part ${JSON.stringify(name)}`);
    return part;
  });
}

/** Whether a VM with these parts has the port of its network. */
export function hasNetwork(devices: readonly string[]): boolean {
  return devices.includes(network);
}
