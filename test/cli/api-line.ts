/** `./capsule` as the team red, against the HTTP layer in this process. */
import { after, before } from "node:test";
import { type Api, keys } from "../api.ts";
import { CommandLine } from "./command-line.ts";

/** Usable within the tests of the file, during which `api` listens. */
export function lineTo(api: Api): CommandLine {
  const line = new CommandLine({ CAPSULE_API_KEY: keys.red });
  before(async () => {
    line.env.CAPSULE_URL = await api.app.listen({ host: "127.0.0.1", port: 0 });
  });
  after(() => api.app.close());
  return line;
}
