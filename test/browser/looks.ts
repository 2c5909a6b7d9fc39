/** Light and dark, wide and narrow, and for whom a screen is read out: every page by axe. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Locator } from "playwright-core";
import { inspect } from "./axe.ts";
import { deadline, service, Visitor } from "./browser.ts";

const sizes = { wide: { width: 1280, height: 800 }, narrow: { width: 360, height: 740 } };

/** One sees colours in every light, the other shapes on every screen. */
const views = [
  { colorScheme: "light", viewport: sizes.wide, reducedMotion: "reduce" },
  { colorScheme: "dark", viewport: sizes.narrow, reducedMotion: "no-preference" },
] as const;

for (const view of views) {
  const { colorScheme, viewport } = view;
  const seen = `${colorScheme}, ${viewport.width} px`;

  test(`axe finds nothing on any page, and nothing leaves the screen: ${seen}`, deadline, async () => {
    await using paused = await service().capsule();
    await paused.pause();
    await using capsule = await service().capsule();
    await using visitor = await Visitor.come("/", view);
    const { page } = visitor;
    const wrong: string[] = [];
    const look = async (name: string) => {
      for (const each of await inspect(page)) wrong.push(`${name}: ${each}`);
    };
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    await look("sign-in");
    await visitor.signIn(service().key);
    await page.getByRole("row").filter({ hasText: paused.id }).getByText("paused").waitFor();
    await page.getByRole("row").filter({ hasText: capsule.id }).getByText("running").waitFor();
    await look("capsules");
    await page.getByRole("checkbox", { name: "Choose all capsules" }).press("Space");
    await page.getByRole("button", { name: /^Destroy \d+$/ }).waitFor();
    await look("capsules, all chosen");
    // By the keyboard: a pointer would rest on whatever later pages have in that place.
    await visitor.keys("New capsule");
    await page.getByText("1 to ").waitFor();
    await look("create dialog");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    for (const [hash, sign] of [
      [`capsules/${capsule.id}/terminal`, "Connected."],
      [`capsules/${capsule.id}/files`, ".bashrc"],
      [`capsules/${capsule.id}/processes`, "/init"],
      [`capsules/${capsule.id}/network`, "No server listens in this capsule"],
      [`capsules/${capsule.id}/metrics`, "CPU, share of its vCPUs"],
      [`capsules/${capsule.id}/details`, "Status since"],
      [`capsules/${paused.id}/terminal`, "Resume this capsule"],
      [`capsules/${paused.id}/network`, "What a running capsule reaches"],
      ["capsules/cl-none/files", "This capsule does not exist"],
      ["templates", "built-in"],
      ["keys", "this session"],
      ["usage", "Virtual CPUs of one capsule"],
      ["audit", /^just now$| ago$/],
    ] as const) {
      await visitor.walksTo(`#/${hash}`);
      await visitor.sees(sign);
      if (sign === "Connected.") await visitor.reads(/#/);
      await look(hash);
    }
    await visitor.walksTo(`#/capsules/${capsule.id}/details`);
    await visitor.keys("More actions");
    await visitor.sees("Stops the capsule and deletes");
    await look("further actions");
    assert.deepEqual(wrong, []);
  });

  test(`axe finds nothing while something is under way: ${seen}`, deadline, async () => {
    await using capsule = await service().capsule();
    await using visitor = await Visitor.signedIn("#/keys", view);
    const { page } = visitor;
    const wrong: string[] = [];
    /** Looks at the page while the answers to these requests are held back. */
    const look = async (held: string, act: () => Promise<unknown>, sign: Locator) => {
      const answers = Promise.withResolvers<void>();
      await page.route(held, async (route) => {
        await answers.promise;
        await route.continue();
      });
      await act();
      await sign.waitFor();
      for (const each of await inspect(page)) wrong.push(`${held}: ${each}`);
      answers.resolve();
      await page.unrouteAll({ behavior: "wait" });
    };
    const loading = page.getByRole("status", { name: "Loading" });
    const inside = `#/capsules/${capsule.id}`;
    await look("**/v1/session", () => page.reload(), page.getByText("Signing in"));
    await page.getByRole("row").filter({ hasText: "this session" }).waitFor();
    await look("**/v1/limits", () => visitor.walksTo("#/usage"), loading);
    await look("**/v1/audit*", () => visitor.walksTo("#/audit"), loading);
    await look("**/files**", () => visitor.walksTo(`${inside}/files`), loading);
    await look("**/v1/ws-tickets", () => visitor.walksTo(`${inside}/terminal`), page.getByText("Connecting"));
    await visitor.sees("Connected.");
    await visitor.walksTo(`${inside}/details`);
    const paused = await visitor.watchesFor(/is paused\./);
    await look("**/pause", () => visitor.keys("Pause"), page.locator(".page-head [aria-busy=true]"));
    await paused();
    await look("**/nothing", async () => {}, page.locator("body"));
    await visitor.walksTo("#/capsules");
    const told = await visitor.watchesFor(/is running again\./);
    await look("**/resume", () => visitor.keys(`Resume ${capsule.id}`), page.getByText("resuming", { exact: true }));
    await told();
    assert.deepEqual(wrong, []);
  });
}

/** At each edge of the style sheet, and at the usual sizes. */
const widths = [1280, 1279, 1041, 1040, 941, 940, 801, 800, 390, 360];

test("no table is wider than its page, and no tab of a capsule is cut, at any width", deadline, async () => {
  await using capsule = await service().capsule({ timeout_sec: 86_400 });
  await using visitor = await Visitor.signedIn("#/capsules", { viewport: sizes.wide });
  const { page } = visitor;
  const wrong: string[] = [];
  for (const [hash, sign] of [
    ["capsules", "from minimal"],
    [`capsules/${capsule.id}/files`, ".bashrc"],
    [`capsules/${capsule.id}/processes`, "/init"],
    ["templates", "built-in"],
    ["keys", "this session"],
    ["audit", /^just now$| ago$/],
  ] as const) {
    await visitor.walksTo(`#/${hash}`);
    await page.setViewportSize(sizes.wide);
    await visitor.sees(sign);
    if (hash === "capsules") await page.locator(".spark").first().waitFor();
    for (const width of widths) {
      await page.setViewportSize({ width, height: 800 });
      const found = await page.evaluate(() => {
        const all = [
          document.documentElement,
          ...document.querySelectorAll(innerWidth < 390 ? ".panel" : ".panel, .tabs"),
        ];
        return all
          .filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)
          .map((each) => `<${each.tagName} ${each.className}> shows ${each.clientWidth} of ${each.scrollWidth} px`);
      });
      wrong.push(...found.map((each) => `${hash}, ${width} px: ${each}`));
    }
  }
  assert.deepEqual(wrong, []);
});

test("what a button will do can be read as soon as it is shown, and half-way to it", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "details", { colorScheme: "light", viewport: sizes.wide });
  const { page } = visitor;
  const wrong: string[] = [];
  for (const name of ["Snapshot", "Pause"]) {
    await page.getByRole("button", { name, exact: true }).hover();
    for (const part of [0, 0.1, 0.3, 0.6, 1]) {
      await page.evaluate((part) => {
        for (const each of document.getAnimations()) {
          const { delay = 0, duration } = each.effect!.getComputedTiming();
          each.pause();
          each.currentTime = delay + Number(duration) * part;
        }
      }, part);
      for (const each of await inspect(page)) wrong.push(`${name} at ${part}: ${each}`);
    }
    const tip = page.getByRole("tooltip").filter({ visible: true });
    assert.equal(await tip.count(), 1, name);
  }
  assert.deepEqual(wrong, []);
});

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
