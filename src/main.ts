/** The program: what a person types after `capsule`. */
import { setFlagsFromString } from "node:v8";

// A streamed file passes through us in small objects with 64 KiB behind each. In a young generation that has grown, as
// it does while the program is loaded, hundreds of megabytes of them wait to be collected; kept at its first 2 MB, few.
setFlagsFromString("--semi-space-growth-factor=1");
const { runCommand } = await import("./operator/commands.ts");

// What is left open ends with the process: above all the lock of the data folder, which must not be let go of before.
process.exit(await runCommand(process.argv.slice(2)));
