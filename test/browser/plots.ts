/** Plots of a capsule and of the team, for eyes and for screen readers. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Locator } from "playwright-core";
import { waitFor } from "../wait-for.ts";
import { deadline, service, Visitor } from "./browser.ts";

/** Whether anything is drawn on the canvas of a plot. */
const isDrawn = (plot: Locator) =>
  plot.locator("canvas").evaluate((canvas: HTMLCanvasElement) => {
    const { width, height } = canvas;
    return canvas
      .getContext("2d")!
      .getImageData(0, 0, width, height)
      .data.some((part) => part !== 0);
  });

test("a capsule's CPU, memory and disk are plotted, and read as tables", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "files");
  const { page } = visitor;
  await page.getByRole("tab", { name: "Files" }).focus();
  // Faster than the page shows what each has chosen.
  await page.evaluate(() => {
    for (let key = 0; key < 3; key++)
      document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  });
  const plots = page.getByRole("figure");
  for (const title of [/^CPU, share of its vCPUs/, /^Memory, of \d/, /^Disk, of 4 GiB|^Disk, of 3\.\d GiB/]) {
    const plot = plots.filter({ hasText: title });
    await plot.getByRole("img", { name: "last 15 minutes" }).waitFor();
    await waitFor(`${title} is drawn`, () => isDrawn(plot));
  }
  const memory = plots.filter({ hasText: /^Memory/ });
  await memory.locator("summary").press("Enter");
  const rows = memory.getByRole("table", { name: /Memory, of/ }).getByRole("row");
  await rows
    .filter({ hasText: /^\d\d:\d\d:\d\d\d+(\.\d)? MiB$/ })
    .first()
    .waitFor();
  await visitor.keys("24 hours");
  // Asked by the test's own clock: a wait of the browser's needs frames, which a page at rest may draw none of.
  const isShown = (range: string) =>
    waitFor(range, async () => (await plots.first().getByRole("img", { name: range }).count()) === 1);
  await isShown("last 24 hours");
  await visitor.keys("1 hour");
  await isShown("last 1 hour");
});

test("the team's capsules and creates are plotted", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.signedIn("#/usage");
  const plots = visitor.page.getByRole("figure");
  for (const title of ["Capsules", "Creates in 10 s", "Time of a create", "Refusals in 10 s"])
    await waitFor(`${title} is drawn`, () => isDrawn(plots.filter({ hasText: title }).first()));
  await visitor.keys("24 hours");
  await visitor.page.getByRole("button", { name: "24 hours", pressed: true }).waitFor();
  assert.equal(capsule.id.slice(0, 3), "cl-");
});

test("the list shows a running capsule's CPU, and Usage what is promised and what is used", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  const row = page.getByRole("row").filter({ hasText: capsule.id });
  await page.getByRole("columnheader", { name: "CPU" }).waitFor();
  await row.getByText(/^CPU \d+ %$/).waitFor();
  assert.match((await row.locator(".spark polyline").getAttribute("points"))!, /^(\d+\.\d,\d+\.\d ?)+$/);
  await visitor.walksTo("#/usage");
  await visitor.sees("Promised memory");
  await visitor.sees(/^In use now: \d+\.\d vCPUs and [\d.]+ [MG]iB of memory/);
});
