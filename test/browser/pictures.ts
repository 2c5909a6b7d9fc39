/**
 * Pictures of every page and dialog, wide and narrow, light and dark, to be looked at:
 * `node test/browser/pictures.ts FOLDER [PATTERN]` writes those whose names match.
 */
import { mkdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { type Browser, chromium, type Page } from "playwright-core";
import { bundle } from "../../web/build.ts";
import { Client } from "../client.ts";
import { Server } from "../server.ts";
import { dialogsOf } from "./dialog-shots.ts";
import { furnish } from "./places.ts";
import { pagesOf, type Scene } from "./shots.ts";

const program = "/usr/bin/chromium";
const waitMs = 60_000;

const views = [
  { name: "1280-light", colorScheme: "light", viewport: { width: 1280, height: 800 } },
  { name: "1280-dark", colorScheme: "dark", viewport: { width: 1280, height: 800 } },
  { name: "390-light", colorScheme: "light", viewport: { width: 390, height: 844 } },
  { name: "390-dark", colorScheme: "dark", viewport: { width: 390, height: 844 } },
] as const;

/** Writes `NAME.VIEW.png` for each shot and view that match. */
export async function take(client: Client, browser: Browser, scene: Scene, folder: string, pattern: RegExp) {
  await mkdir(folder, { recursive: true });
  for (const { name: view, ...options } of views) {
    for (const shot of [...pagesOf(scene), ...dialogsOf(scene)]) {
      const file = `${shot.name}.${view}.png`;
      if (!pattern.test(file)) continue;
      const context = await browser.newContext({ ...options, reducedMotion: "reduce" });
      try {
        context.setDefaultTimeout(waitMs);
        const page = await context.newPage();
        await page.goto(`${client.url}/${shot.at}`);
        if (shot.isOut === undefined) await signIn(page, client.key);
        if (shot.sign !== "") await page.getByText(shot.sign).first().waitFor();
        await shot.act?.(page);
        await page.screenshot({ path: join(folder, file), fullPage: shot.isWindow === undefined });
      } catch (error) {
        console.error(`${file}: ${(error as Error).message.slice(0, 300)}`);
      } finally {
        await context.close();
      }
    }
  }
}

async function signIn(page: Page, key: string): Promise<void> {
  await page.getByLabel("API key").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("navigation", { name: "Main" }).waitFor();
}

/** Capsules in each status, beside what the dialogs are about. */
export async function setScene(client: Client, { dataDir }: Server): Promise<Scene> {
  const { places } = await furnish(client, "to-look-at", "build server");
  const { capsule } = places;
  const json = { name: "checkout-preview-of-branch-1842", labels: { env: "preview", owner: "ana" } };
  await client.expect(200, "PATCH", capsule.path, { json });
  await capsule.sh("mkdir -p /root/project/src; seq 40 > /root/numbers; head -c 3000000 /dev/zero > /root/data.bin");
  const paused = await client.capsule({ name: "paused-one" });
  await paused.pause();
  const stopped = await client.capsule();
  await client.expect(200, "POST", `${stopped.path}/stop`);
  const failed = await client.capsule({ name: "failed-one" });
  const vm = JSON.parse(await readFile(join(dataDir, "capsules", failed.id, "vm.json"), "utf8"));
  process.kill(vm.process.pid, "SIGKILL");
  await failed.until("error");
  return { ...places, paused: paused.id, stopped: stopped.id, failed: failed.id };
}

if (import.meta.main) {
  const [folder, pattern = ""] = process.argv.slice(2);
  if (folder === undefined) throw new Error("usage: node test/browser/pictures.ts FOLDER [PATTERN]");
  const web = join(tmpdir(), `capsule-web-${process.pid}`);
  await bundle(web);
  const env = { CAPSULE_WEB: web, CAPSULE_POOL_MIN: "1" };
  await using server = await Server.start({ env, errors: [/./] }); // a VM is killed
  const client = await Client.connect(server.url, server.apiKey);
  const isRoot = process.getuid?.() === 0;
  const browser = await chromium.launch({ executablePath: program, args: isRoot ? ["--no-sandbox"] : [] });
  try {
    await take(client, browser, await setScene(client, server), resolve(folder), new RegExp(pattern));
  } finally {
    await browser.close();
    client.close();
    await rm(web, { recursive: true, force: true });
  }
}
