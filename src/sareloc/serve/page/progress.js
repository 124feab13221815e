// Progress of a query: hidden at first, then the upload, then that the answer takes long.

const SHOW_AFTER_MS = 1000;
const SLOW_AFTER_MS = 8000;

/** Returns {sent(fraction), busy(seconds), stop()}; `announce(text)` is for screen readers. */
export function showProgress({ box, bar, title, detail }, announce) {
  const say = (heading, text) => {
    if (title.textContent !== heading) announce(heading);
    title.textContent = heading;
    detail.textContent = text;
  };
  const unknown = () => bar.removeAttribute("value");
  let slow = false;
  const looking = () => {
    unknown();
    if (slow) say("Still looking…", "The model is slow on this server. Please wait.");
    else say("Looking for this place…", "Comparing with the photos of the map.");
  };
  let tell = looking;

  box.hidden = true;
  title.textContent = "Looking for this place…";
  unknown();
  const timers = [
    setTimeout(() => { tell(); box.hidden = false; }, SHOW_AFTER_MS),
    setTimeout(() => { slow = true; if (tell === looking) tell(); }, SLOW_AFTER_MS),
  ];
  let countdown;

  return {
    sent(fraction) {
      clearInterval(countdown);
      tell = fraction < 1 ? () => {
        bar.value = fraction;
        say("Sending the photo…", `${Math.round(fraction * 100)} % sent`);
      } : looking;
      if (!box.hidden) tell();
    },
    busy(seconds) {
      let left = Math.ceil(seconds);
      tell = () => say("The server is busy", left > 0 ? `Trying again in ${left} s.` : "Trying again…");
      unknown();
      box.hidden = false;
      tell();
      clearInterval(countdown);
      countdown = setInterval(() => { left -= 1; tell(); if (left <= 0) clearInterval(countdown); }, 1000);
    },
    stop() {
      timers.forEach(clearTimeout);
      clearInterval(countdown);
      box.hidden = true;
    },
  };
}
