/** `capsule templates`: list, remove. */
import { type Call, UsageError } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { ago, printJson, printLine, sized, table } from "./screen.ts";

export async function templates(call: Call): Promise<number> {
  const [verb = "ls", ...names] = call.words;
  const client = await call.client();
  if (verb === "rm" && names.length > 0) {
    for (const name of names) {
      await client.templates.remove(name);
      await (call.isJson ? printJson({ name }) : printLine(name));
    }
    return exitCodes.done;
  }
  if (verb !== "ls" || names.length > 0) throw new UsageError("it is templates ls, or templates rm NAME…");
  const list = await client.templates.list();
  if (call.isJson) await printJson(list);
  else {
    const rows = list.map(({ name, type, vcpus, memoryMb, sizeBytes, createdAt }) => [
      name,
      type,
      vcpus === null ? "-" : String(vcpus),
      memoryMb === null ? "-" : `${memoryMb} MiB`,
      sized(sizeBytes),
      ago(createdAt),
    ]);
    await printLine(table(["NAME", "TYPE", "VCPUS", "MEMORY", "SIZE", "CREATED"], rows));
  }
  return exitCodes.done;
}
