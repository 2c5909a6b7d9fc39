/** Saves bytes as a download. The type is always application/octet-stream: a guest's HTML is never opened as a page. */

const lifeMs = 60_000;

export function saveAs(name: string, content: Blob): void {
  const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), lifeMs);
}
