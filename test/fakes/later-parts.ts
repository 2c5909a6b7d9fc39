/** The parts of a release to come: a second port on the serial device, which takes one more place of it. */
import { type Parts, parts } from "../../src/vmm/machine/parts.ts";

export const secondSocketName = "second.sock";

const ports = parts.known.get("ports:1")!;

export const laterParts: Parts = {
  newest: ["ports:1", "second:1"],
  known: new Map([
    ...parts.known,
    [
      "ports:1",
      {
        ...ports,
        args: (devices, fd) =>
          ports
            .args(devices, fd)
            .map((arg) => (devices.includes("second:1") ? arg.replace("ports=2", "ports=3") : arg)),
      },
    ],
    [
      "second:1",
      {
        sockets: [secondSocketName],
        args: (_devices, fd) => [
          ...["-chardev", `socket,id=second,fd=${fd(secondSocketName)},server=on,wait=off`],
          ...["-device", "virtserialport,chardev=second,name=capsule.second"],
        ],
      },
    ],
  ]),
};
