"""A thread closes what it used longest ago, and last what is still being made, such as a download that waits for its turn."""

from dataclasses import dataclass

from loaderkit.system.open_files import FileLimit, OpenFiles


@dataclass
class Handle:
    is_over: bool = True
    closed: bool = False

    def close(self) -> None:
        self.closed = True


def test_what_is_being_made_is_closed_last() -> None:
    opened = OpenFiles(FileLimit(3))
    made = [Handle(is_over=number not in (0, 2)) for number in range(3)]
    opened.handles.update(enumerate(made))
    closed = []
    for number in range(3, 6):
        opened.make_room()
        closed.append([place for place, handle in enumerate(made) if handle.closed])
        made.append(Handle())
        opened.handles[number] = made[number]
    assert closed == [[1], [1, 3], [1, 3, 4]]
    for number in (3, 5):
        opened.handles.pop(number, None)
    opened.handles[6] = Handle(is_over=False)
    opened.make_room()
    assert [handle.closed for handle in made] == [True, True, False, True, True, False]
