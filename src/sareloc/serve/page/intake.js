// How photos come in: a file button, the camera, a drop anywhere on the page, a paste.

/** `take(files)` gets the files that were given together; `nothing()` is told of a drop without any. */
export function openIntake({ choose, shoot, file, camera, curtain }, take, nothing) {
  const give = (files) => (files.length ? take(files) : nothing());
  for (const [button, input] of [[choose, file], [shoot, camera]]) {
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      if (input.files.length) give([...input.files]);
      input.value = "";  // so that the same photo can be chosen again
    });
  }

  document.addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) give([...event.clipboardData.files]);
  });

  let inside = 0;  // entering a child comes before leaving its parent: only the count knows whether the page was left
  const lift = (by) => {
    inside = Math.max(0, inside + by);
    curtain.hidden = !inside;
  };
  const onPage = (name, react) =>
    window.addEventListener(name, (event) => {
      event.preventDefault();  // else the browser leaves the page and opens the file
      react(event);
    });
  onPage("dragenter", () => lift(1));
  onPage("dragleave", () => lift(-1));
  onPage("dragover", () => {});
  onPage("drop", (event) => {
    lift(-inside);
    give([...event.dataTransfer.files]);
  });
}
