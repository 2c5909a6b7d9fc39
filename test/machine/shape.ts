/** The shape of a machine: the versions, rights and devices that users' machines differ in. One flag each. */
import { parseArgs } from "node:util";

export interface Shape {
  kernel: "bookworm" | "backports";
  qemu: "7.2" | "10";
  /** Whether the machine's processor offers hardware virtualization. */
  hasKvm: boolean;
  /** Commands run as an ordinary user instead of root. */
  isRootless: boolean;
  /** Size of the file system of /var/lib/capsule. */
  dataMb: number;
}

const dataMb = { usual: 16_384, small: 1_536 };

export const usualShape: Shape = {
  kernel: "bookworm",
  qemu: "10",
  hasKvm: true,
  isRootless: false,
  dataMb: dataMb.usual,
};

export const shapeHelp = `  --kernel bookworm|backports   Debian 12's own kernel, or the one of its backports; default: bookworm
  --qemu 7.2|10                 QEMU of Debian 12, or of its backports; default: 10
  --no-kvm                      a processor without virtualization
  --rootless                    commands run as an ordinary user with a delegated control group
  --small-disk                  /var/lib/capsule has ${dataMb.small} MiB instead of ${dataMb.usual}`;

/** Throws an Error with a sentence when a flag is unknown. */
export function parseShape(args: string[]): Shape {
  const { values } = parseArgs({
    args,
    options: {
      kernel: { type: "string", default: usualShape.kernel },
      qemu: { type: "string", default: usualShape.qemu },
      "no-kvm": { type: "boolean", default: false },
      rootless: { type: "boolean", default: false },
      "small-disk": { type: "boolean", default: false },
    },
  });
  return {
    kernel: oneOf("--kernel", values.kernel, ["bookworm", "backports"]),
    qemu: oneOf("--qemu", values.qemu, ["7.2", "10"]),
    hasKvm: !values["no-kvm"],
    isRootless: values.rootless,
    dataMb: values["small-disk"] ? dataMb.small : dataMb.usual,
  };
}

function oneOf<T extends string>(flag: string, value: string, allowed: readonly T[]): T {
  const found = allowed.find((each) => each === value);
  if (found === undefined) throw new Error(`${flag} is ${allowed.join(" or ")}, not ${JSON.stringify(value)}`);
  return found;
}
