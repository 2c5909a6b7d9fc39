/** Light and dark, wide and narrow, and for whom a screen is read out: every page by axe. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { deadline, service, Visitor } from "./browser.ts";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Violation {
  id: string;
  help: string;
  nodes: { html: string; failureSummary?: string }[];
}

/** What axe finds wrong, one line for each element. */
async function violations(page: Page): Promise<string[]> {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { axe } = window as unknown as { axe: { run: () => Promise<{ violations: Violation[] }> } };
    return (await axe.run()).violations;
  });
  return found.flatMap(({ id, help, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${help}: ${html.slice(0, 200)} ${failureSummary}`),
  );
}

const sizes = { wide: { width: 1280, height: 800 }, narrow: { width: 360, height: 740 } };

for (const [colorScheme, viewport] of [
  ["light", sizes.wide],
  ["dark", sizes.narrow],
] as const) {
  test(
    `axe finds nothing on any page, and nothing leaves the screen: ${colorScheme}, ${viewport.width} px`,
    deadline,
    async () => {
      await using paused = await service().capsule();
      await paused.pause();
      await using capsule = await service().capsule();
      await using visitor = await Visitor.come("/", { colorScheme, viewport, reducedMotion: "reduce" });
      const { page } = visitor;
      const wrong: string[] = [];
      const look = async (name: string) => {
        for (const each of await violations(page)) wrong.push(`${name}: ${each}`);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        if (width > viewport.width) wrong.push(`${name} is ${width} px wide`);
      };
      await look("sign-in");
      await visitor.signIn(service().key);
      await page.getByRole("row").filter({ hasText: "paused" }).waitFor();
      await look("capsules");
      await visitor.presses("New capsule");
      await page.getByText("1 to ").waitFor();
      await look("create dialog");
      await page.keyboard.press("Escape");
      for (const [hash, sign] of [
        [`capsules/${capsule.id}/terminal`, "Connected."],
        [`capsules/${capsule.id}/files`, ".bashrc"],
        [`capsules/${capsule.id}/processes`, "/init"],
        [`capsules/${capsule.id}/details`, "Status since"],
        [`capsules/${paused.id}/terminal`, "Resume it"],
        ["capsules/cl-none/files", "This capsule does not exist"],
        ["templates", "built-in"],
        ["keys", "this session"],
        ["usage", "Virtual CPUs of one capsule"],
        ["audit", "capsule.create"],
      ] as const) {
        await visitor.walksTo(`#/${hash}`);
        await visitor.sees(sign);
        await look(hash);
      }
      assert.deepEqual(wrong, []);
    },
  );
}

test("the theme follows the system until it is chosen, and the choice stays", deadline, async () => {
  await using visitor = await Visitor.signedIn("", { colorScheme: "dark" });
  const { page } = visitor;
  const brightness = () =>
    page.evaluate(() => Number(/\d+/.exec(getComputedStyle(document.documentElement).backgroundColor)?.[0]));
  assert.ok((await brightness()) < 60);
  await visitor.presses("Theme: system");
  await visitor.presses("Theme: light");
  await page.getByRole("button", { name: "Theme: dark" }).waitFor();
  assert.ok((await brightness()) < 60);
  await page.emulateMedia({ colorScheme: "light" });
  assert.ok((await brightness()) < 60);
  await visitor.presses("Theme: dark");
  assert.ok((await brightness()) > 200);
  await visitor.presses("Theme: system");
  await page.emulateMedia({ colorScheme: "dark" });
  await page.reload();
  await page.getByRole("button", { name: "Theme: light" }).waitFor();
  assert.ok((await brightness()) > 200);
});
