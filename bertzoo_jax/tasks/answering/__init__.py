"""Questions over passages: their files, windows of long passages, answers and their metrics."""
