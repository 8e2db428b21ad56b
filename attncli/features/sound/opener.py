"""The opener for sound in all commands that read files."""

from attncli.errors import UserError
from attncli.features.sound.reading import (
    most_written,
    num_before_words,
    part_that_hears,
    published_heads,
    read_sound,
)
from attncli.models.openers import FileInput, Opener
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.prompts import Prompt, reading_prompt


class SoundOpener(Opener):
    """A sound, with words for a decoder: given words, or words that the model writes."""

    def read(self, pretrained: Pretrained, given: FileInput) -> Reading:
        # Without a text, the decoder writes one.
        text = "" if pretrained.has_decoder and given.text is None else given.text
        return read_sound(pretrained, given.file, text, truncate=given.truncate)

    def read_for_layer(self, pretrained: Pretrained, given: FileInput) -> Reading:
        text = given.text
        if given.is_cross:
            if not pretrained.has_decoder:
                raise UserError(
                    f"model: {pretrained.name} has no decoder that looks at a sound: use attn self"
                )
            text = text or ""
        elif text is not None and pretrained.has_decoder:
            reason = f"the encoder of {pretrained.name} reads only the sound"
            raise UserError(f"sentence: {reason}: omit the text, or use attn cross")
        return read_sound(pretrained, given.file, text, truncate=given.truncate)

    def read_prompt(self, pretrained: Pretrained, given: FileInput) -> Prompt:
        if not pretrained.has_decoder:
            raise UserError(f"sound: {pretrained.name} has no decoder to transcribe a sound")
        if given.text:
            raise UserError(
                f"sentence: {pretrained.name} transcribes a sound without any text: omit the text"
            )
        prompt = reading_prompt(read_sound(pretrained, given.file), pretrained)
        most, before, num_new = most_written(pretrained), num_before_words(pretrained), given.max_new_tokens
        if most is not None and num_new is not None and before + num_new > most:
            got = f"{before} before the words and {num_new} new ones"
            raise UserError(f"max_new_tokens: {pretrained.name} has room for {most} tokens (got {got})")
        return prompt

    def reader(self, pretrained: Pretrained, text: str | None) -> Pretrained:
        return pretrained if pretrained.has_decoder else part_that_hears(pretrained)

    def telling_head(self, pretrained: Pretrained) -> tuple[int, int] | None:
        """Return the first of the published heads that time words, or None."""
        return next(iter(published_heads(pretrained)), None)


SOUNDS = SoundOpener()
