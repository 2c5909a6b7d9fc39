/** The parts of a release to come: a third port on the serial device, which takes one more place of it. */
import { type Parts, parts } from "../../src/vmm/machine/parts.ts";

export const laterSocketName = "later.sock";

const ports = parts.known.get("ports:1")!;

export const laterParts: Parts = {
  newest: ["ports:1", "net:1", "later:1"],
  known: new Map([
    ...parts.known,
    [
      "ports:1",
      {
        ...ports,
        args: (devices, fd) =>
          ports.args(devices, fd).map((arg) => (devices.includes("later:1") ? arg.replace("ports=3", "ports=4") : arg)),
      },
    ],
    [
      "later:1",
      {
        sockets: [laterSocketName],
        args: (_devices, fd) => [
          ...["-chardev", `socket,id=later,fd=${fd(laterSocketName)},server=on,wait=off`],
          ...["-device", "virtserialport,chardev=later,name=capsule.later"],
        ],
      },
    ],
  ]),
};
